"""A plan of several micro-batches per optimizer step, on a script that makes one pass of them all: refused.

Splitting a script's batch would change what it computes on it (losses summed, BatchNorm, metrics); the script's author
can split it in four lines.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process.meet import say

LINES = """change the loop to
    for i, (x, y) in enumerate(loader):  # batch_size of the loader: {micro}
        with model.no_sync() if (i + 1) % {k} else contextlib.nullcontext():
            (loss_fn(model(x), y) / {k}).backward()
        if (i + 1) % {k} == 0:
            optimizer.step()
            optimizer.zero_grad()
or {other}"""


class MicroBatches:
    """The models of a plan with accumulation, until their first optimizer step."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._passes: list[Passes] = []

    def watch(self, model: Any) -> None:
        self._passes.append(Passes(model))

    def before_step(self, optimizer: Any, closure: bool = False) -> None:
        """Judge each model that the optimizer trains; raise RuntimeError on every rank alike."""
        for passes in [passes for passes in self._passes if passes.backwards and passes.trained_by(optimizer)]:
            if all(group.get("lr") == 0 for group in optimizer.param_groups):
                passes.start()  # a step that trains nothing, to warm up
                continue
            self._passes.remove(passes)
            passes.stop()
            self._judge(passes, closure)

    def _judge(self, passes: "Passes", closure: bool) -> None:
        planned, made = self._plan["accumulation"], len(passes.backwards) + closure
        if passes.forwards == made == 1 and not closure:
            raise RuntimeError(refusal(self._plan, passes.samples))
        if made != planned:
            say(f"the script makes {made} backward passes in its first optimizer step, the plan says {planned}")

    def steer_optimizers(self, optimizer: Any) -> None:
        def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.before_step(optimizer, any(value is not None for value in (*args[1:], *kwargs.values())))

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_pre_hook(before_step)

    def steer_scaler(self, grad_scaler: Any) -> None:
        """Judge steps that GradScaler skips as well: with the next pass they would look like two."""
        step = grad_scaler.GradScaler.step

        @functools.wraps(step)
        def judged(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.before_step(optimizer)
            return step(scaler, optimizer, *args, **kwargs)

        grad_scaler.GradScaler.step = judged


class Passes:
    """The passes of one model: those forward with gradients, and which of them went backward."""

    def __init__(self, model: Any) -> None:
        import torch

        self._model = weakref.ref(model)
        self.samples: int | None = None  # of the first pass
        self.start()

        def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if module is not self._model() or not torch.is_grad_enabled():
                return
            self.forwards += 1
            inputs = [one for one in tensors((args, kwargs)) if one.ndim]
            if self.samples is None and inputs:
                self.samples = len(inputs[0])
            went = functools.partial(self._went_backward, self.backwards, self.forwards)
            for one in tensors(output):
                if one.grad_fn is not None:
                    one.register_hook(went)

        disable: Callable[..., Any] = torch.compiler.disable  # compiled models call our hooks as they are
        self._handle = model.register_forward_hook(disable(look), with_kwargs=True)

    def start(self) -> None:
        self.forwards = 0
        self.backwards: set[int] = set()

    @staticmethod
    def _went_backward(backwards: set[int], which: int, _: Any) -> None:
        backwards.add(which)

    def stop(self) -> None:
        self._handle.remove()

    def trained_by(self, optimizer: Any) -> bool:
        model = self._model()
        mine = set() if model is None else set(map(id, model.parameters()))
        return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])


def tensors(value: Any) -> Iterator[Any]:
    """Walk through what a model takes or returns."""
    import dataclasses

    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (one for part in value.values() for one in tensors(part))
    elif isinstance(value, list | tuple):
        yield from (one for part in value for one in tensors(part))
    elif dataclasses.is_dataclass(value):
        yield from tensors(vars(value))


def refusal(plan: dict[str, Any], samples: int | None) -> str:
    """Say what the plan makes, what the script made, and which lines to change."""
    k, planned = plan["accumulation"], plan["micro_batch"]
    ranks = len(plan["gpus"]) * plan["nodes"]
    each = "" if planned is None else f" of {planned} samples"
    made = "" if samples is None else f" of {samples} samples"
    micro = planned or (samples // k if samples and samples % k == 0 else f"its own divided by {k}")
    other = 'write "accumulation": 1 in the plan'
    if samples:
        other += f", or let advisor make one: --micro-batch {samples} --global-batch {samples * ranks}"
    return (
        f"the plan makes {k} micro-batches{each} per optimizer step, the script made one backward pass{made}; "
        f"nothing was trained yet: {LINES.format(k=k, micro=micro, other=other)}"
    )
