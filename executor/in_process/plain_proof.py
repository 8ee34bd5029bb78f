"""What a trial of a plain script notes for the comparison with one process: the loss of each backward pass, and the
norm of the gradients at each optimizer step."""

import functools
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process import whole
from advisor.executor.in_process.plain_share import Ranks, place


class Proof:
    def __init__(self, ranks: Ranks, note: Callable[..., None]) -> None:
        self._ranks, self._note = ranks, note
        self._losses: list[float] = []
        self._where = ""  # of the last backward pass

    def loss(self, loss: Any) -> None:
        self._where = place()
        self._losses.append(float(loss.detach().double().reshape(-1)[0]))

    def steer_optimizers(self, module: Any) -> None:
        def before_step(optimizer: Any, *_: Any) -> None:
            import torch

            with torch.no_grad():
                gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
                norms = [whole.value(torch.linalg.vector_norm(one.double())) for one in gradients if one is not None]
                norm = float(torch.linalg.vector_norm(torch.stack([one.cpu() for one in norms]))) if norms else 0.0
                kinds = {str(one.dtype).removeprefix("torch.") for one in gradients if one is not None}
            losses, self._losses = self._losses, []
            self._note(
                "proof", losses=losses, norm=norm, dtypes=sorted(kinds), where=self._where, reads=self._ranks.reads
            )

        module.register_optimizer_step_pre_hook(before_step)


ROUNDINGS = 16  # a tenth of what the first step may differ by


def nudge(module: Any, rounding: float | None = None) -> None:
    """Have all weights begin off by so much, relative; by default by some roundings of their precision."""
    add = module.Optimizer.add_param_group

    @functools.wraps(add)
    def added(optimizer: Any, param_group: Any) -> None:
        import torch

        add(optimizer, param_group)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in optimizer.param_groups[-1]["params"]:
                by = ROUNDINGS * torch.finfo(parameter.dtype).eps if rounding is None else rounding
                noise = torch.rand(parameter.shape, generator=generator, device="cpu") - 0.5
                parameter.mul_((1 + by * noise.double()).to(parameter.device))

    module.Optimizer.add_param_group = added


def without_autocast(autocast_mode: Any) -> None:
    """Have a trial compute in the precision of the weights, in which a small difference tells more."""
    kind = autocast_mode.autocast
    build = kind.__init__

    @functools.wraps(build)
    def init(context: Any, *args: Any, **kwargs: Any) -> None:
        build(context, *args, **kwargs)
        context._enabled = False

    kind.__init__ = init


DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def without_dropout(functional: Any) -> None:
    """Drop nothing: slices of texts are padded less than the whole batch, so what is dropped could not be matched."""
    attend = functional.scaled_dot_product_attention

    def same(input: Any, *_: Any, **__: Any) -> Any:
        return input

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    for name in DROPOUTS:
        setattr(functional, name, same)
    functional.scaled_dot_product_attention = attention


def without_compilation(config: Any) -> None:
    config.disable = True


def one_process_loads(dataloader: Any) -> None:
    """Have loaders of a trial load in the rank's own process, so that random numbers can be matched."""
    kind = dataloader.DataLoader
    build = kind.__init__

    @functools.wraps(build)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            kwargs.pop(name, None)
        if "num_workers" in kwargs:
            kwargs["num_workers"] = 0
        build(loader, *args, **kwargs)

    kind.__init__ = init
