"""What a plan does to a DistributedDataParallel beside its arguments: gradients on the wire, accumulation."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.meet import say

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


def send_gradients_as(dtype: str, guard: Guard, model: Any) -> None:
    """Have DDP send bf16 or fp16 gradients.

    From the first forward pass on: by then the script has registered its own hook, if any, and DDP takes one only.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def register_gradient_hook(*_: Any) -> None:
        handle.remove()
        if getattr(model, "_comm_hooks", ()) or getattr(model, "mixed_precision", None) is not None:
            say("gradients go as the script's own communication hook sends them, not as the plan says")
        elif dtype == "bf16" and model.device_type != "cuda":
            say("gradients stay as they are on the wire: bf16 needs NCCL")
        else:
            hook = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}[dtype]
            model.register_comm_hook(model.process_group, hook)

    handle = model.register_forward_pre_hook(guard(register_gradient_hook))


class Accumulation:
    """The models whose script runs several backward passes per optimizer step and synchronises each.

    Once two steps had the same number of passes, all but the last of a step skip the synchronisation, as `no_sync()`
    does. A step with fewer passes would leave gradients apart: whatever reads them first, the optimizer, clipping or
    GradScaler, has them averaged before, and from then on nothing is skipped any more.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rhythms: list[Rhythm] = []

    def watch(self, model: Any) -> None:
        if not model.find_unused_parameters and not model.static_graph:
            self._rhythms.append(Rhythm(model, self._guard))

    def settle(self, *_: Any) -> None:
        """Average what is not yet; not guarded: with gradients that differ between ranks training must not go on."""
        for rhythm in self._rhythms:
            rhythm.settle()

    def step_begins(self, optimizer: Any, *_: Any) -> None:
        self.settle()
        for rhythm in self._rhythms:
            rhythm.step_begins(optimizer)

    def steer_optimizers(self, optimizer: Any) -> None:
        def before_step(*args: Any) -> None:
            self.step_begins(*args)

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_pre_hook(before_step)

    def steer_clipping(self, clip_grad: Any) -> None:
        for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
            if hasattr(clip_grad, name):
                setattr(clip_grad, name, self._after_settling(getattr(clip_grad, name)))

    def steer_scaler(self, grad_scaler: Any) -> None:
        grad_scaler.GradScaler.unscale_ = self._after_settling(grad_scaler.GradScaler.unscale_)

    def _after_settling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def settled(*args: Any, **kwargs: Any) -> Any:
            self.settle()
            return call(*args, **kwargs)

        return settled


class Rhythm:
    """How many backward passes one model has per optimizer step."""

    def __init__(self, model: Any, guard: Guard) -> None:
        self._model = weakref.ref(model)
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._ids = set(map(id, self._trained))
        self._forwards = self._backwards = 0
        self._first: int | None = None  # passes of the first step
        self._expected = 0  # passes per step, once that is known
        self._apart = False  # gradients of this step are not averaged yet
        self._forward_hook = model.register_forward_pre_hook(guard(self._forward_begins))
        self._backward_hook = self._trained[0].register_post_accumulate_grad_hook(self._backward_ended)

    def _forward_begins(self, model: Any, *_: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or not model.training:
            return
        if not self._expected and not model.require_backward_grad_sync:
            self._stop()  # the script accumulates with no_sync() by itself
            return
        self._forwards += 1
        if self._expected:
            self._apart = self._forwards < self._expected
            model.require_backward_grad_sync = not self._apart

    def _backward_ended(self, *_: Any) -> None:
        self._backwards += 1

    def step_begins(self, optimizer: Any) -> None:
        owned = (id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        if self._forward_hook is None or not self._ids.intersection(owned):
            return
        passes, self._forwards, backwards, self._backwards = self._forwards, 0, self._backwards, 0
        if self._expected:
            if passes > self._expected:
                self._undo(passes)
        elif passes != backwards or passes < 2 or self._first not in (None, passes):
            self._stop()
            before = "" if self._first is None else f", {self._first} in the one before"
            say(
                "each backward pass synchronises gradients, as the script has it: "
                f"{passes} forward and {backwards} backward passes in this optimizer step{before}"
            )
        elif self._first is None:
            self._first = passes
        else:
            self._expected = passes
            self._backward_hook.remove()
            say(f"{passes} backward passes per optimizer step: from now on the last alone synchronises gradients")

    def settle(self) -> None:
        if not self._apart:
            return
        import torch.distributed as dist

        model = self._model()
        if model is None:
            return
        self._apart = False
        for parameter in self._trained:
            if parameter.grad is not None:
                mean = parameter.grad.contiguous()
                dist.all_reduce(mean, group=model.process_group)
                mean /= dist.get_world_size(model.process_group)
                if mean is not parameter.grad:
                    parameter.grad.copy_(mean)
        self._undo(self._forwards)

    def _undo(self, passes: int) -> None:
        say(
            f"{passes} backward passes in this optimizer step, {self._expected} before: "
            "from now on each synchronises gradients again"
        )
        self._stop()

    def _stop(self) -> None:
        model = self._model()
        if model is not None and self._expected:
            model.require_backward_grad_sync = True
        self._expected, self._apart = 0, False
        self._backward_hook.remove()
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None
