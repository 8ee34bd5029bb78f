"""Backward passes of a plain script: losses are weighted, and they and gradients become those of the whole batch."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process import whole
from advisor.executor.in_process.plain_gradients import Gradients
from advisor.executor.in_process.plain_shards import Shards
from advisor.executor.in_process.plain_share import Ranks, place

COMPARED, NOW_AND_THEN = 3, 100  # the first batches and steps are compared between ranks, then each hundredth
NO_BATCH = (
    "this backward pass{where} uses no batch of a DataLoader, so every rank would train on the same data: put the data "
    "into torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=..., shuffle=True) and loop "
    "over it, calling model.train() before the loop; or train on one GPU: --gpus 1"
)
NO_CALL = (
    "no call of a model before this backward pass{where} had a tensor with a sample for each rank, so every rank would "
    "train on the same data: make larger batches, or train on one GPU: --gpus 1"
)
UNLIKE = (
    "the ranks draw different batches: what the sampler or the dataset draws at random must come from torch's, numpy's "
    "or python's global generator, or from one with a fixed seed; or train on one GPU: --gpus 1"
)
GRAPH = "backward(create_graph=True) into parameters can't be averaged between ranks: use torch.autograd.grad"


class Backward:
    def __init__(self, ranks: Ranks, gradients: Gradients) -> None:
        self._ranks, self._gradients = ranks, gradients
        self._marks: list[float] = []  # of the batches since the last backward pass
        self._passes = 0
        self._hidden: dict[int, Any] = {}  # losses, by the ids of their scaled ones
        self.shards: Shards | None = None
        self.on_backward: Callable[[], None] = lambda: None
        self.on_evaluation: Callable[[], None] = lambda: None
        self.on_loss: Callable[[Any], None] = lambda loss: None  # with the batch's own loss

    def expect(self, mark: float) -> None:
        """Take the mark of a batch that all ranks must have drawn."""
        self._marks.append(mark)

    def steer_autograd(self, autograd: Any) -> None:
        original = autograd.backward

        @functools.wraps(original)
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            import torch

            outer = self._gradients.running
            if outer is not None or not (self._gradients or self._shards()):
                if outer is not None:
                    outer.nested = True
                original(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
                return
            roots = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
            given = [grad_tensors] * len(roots) if grad_tensors is None or len(roots) == 1 else list(grad_tensors)
            given = [one[0] if isinstance(one, list | tuple) else one for one in given]
            weighted = [self._weighted(root, one) for root, one in zip(roots, given, strict=True)]
            reduces = self._ranks.ranks > 1 and self._ranks.apart and not create_graph
            current = self._gradients.begin(reduces)
            try:
                original(roots, weighted, retain_graph, create_graph, *args, **kwargs)
                with torch.set_grad_enabled(False):  # not no_grad, which would sound like an evaluation
                    loss = roots[0] if len(roots) == 1 and given[0] is None and roots[0].numel() == 1 else None
                    sharded = self.shards is not None and self.shards.reached
                    if reduces:
                        total = self._total(self._gradients.end(current, _own(loss)), loss, sharded)
                        if current.views or sharded:  # else it reached no rank's parameters
                            self._passed(total, loss, retain_graph)
                    elif current.arrived or sharded:
                        self._passed_alone(loss)
            finally:
                if self._gradients.running is not None:
                    self._gradients.leave(current)

        autograd.backward = backward

    def _shards(self) -> bool:
        return self.shards is not None and bool(self.shards.models())

    def _total(self, total: Any, loss: Any, sharded: bool) -> Any:
        """Return the loss of the whole batch, which went along with gradients if any were sent."""
        import torch.distributed as dist

        if total is None and sharded and loss is not None:
            total = _own(loss).double() * (self._ranks.factor() / self._ranks.ranks)
            dist.all_reduce(total)
        return total

    def steer_grad_mode(self, grad_mode: Any) -> None:
        """Hear of work without gradients: evaluation, where no backward pass follows it."""
        for kind in (grad_mode.no_grad, grad_mode.inference_mode):
            kind.__enter__ = self._hearing(kind.__enter__)

    def _hearing(self, enter: Any) -> Any:
        @functools.wraps(enter)
        def entered(context: Any) -> Any:
            if self._ranks.active and not _by_torch():
                self.on_evaluation()
            return enter(context)

        return entered

    def steer_scaler(self, grad_scaler: Any) -> None:
        """Remember which loss a scaled one stands for."""
        scale = grad_scaler.GradScaler.scale

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if hasattr(outputs, "grad_fn") and result is not outputs:
                self._hidden[id(result)] = outputs
            return result

        grad_scaler.GradScaler.scale = scaled

    def _weighted(self, root: Any, given: Any) -> Any:
        """Return the gradient of a root that makes those of all ranks add up to that of the whole batch."""
        import torch

        weight = self._ranks.factor() / self._ranks.ranks * self._gradients.divisor
        if weight == 1 or (given is None and root.numel() != 1):
            return given
        return torch.full_like(root, weight) if given is None else given * weight

    def _passed_alone(self, loss: Any) -> None:
        """Go on after a pass that nothing was to be sent of; with several ranks it may not have reached parameters."""
        if self._ranks.ranks > 1:
            no_batch = NO_CALL if self._ranks.calls else NO_BATCH
            raise RuntimeError(GRAPH if self._ranks.apart else no_batch.format(where=place()))
        self.on_backward()
        if loss is not None:
            original = self._unhidden(loss)
            self.on_loss(_own(loss) if original is None else original.detach())

    def _passed(self, total: Any, loss: Any, retained: Any) -> None:
        """Go on after a pass: the losses of the script become those of the whole batch."""
        import torch

        self.on_backward()
        self._compare()
        if loss is None:
            return
        original = self._unhidden(loss)
        if not retained and loss.grad_fn is not None:
            shown = total.to(loss.dtype)
            if original is not None:
                scaled = loss.detach()
                original.data.copy_(torch.where(scaled == 0, original.detach(), shown * (original.detach() / scaled)))
            loss.data.copy_(shown)
        self.on_loss(total if original is None else original.detach())

    def _unhidden(self, loss: Any) -> Any:
        """Return the loss that a scaled one stands for."""
        original = self._hidden.pop(id(loss), None)
        self._hidden.clear()
        return original

    def _compare(self) -> None:
        """Stop on every rank where the batches of this pass are not those of the others, now and then."""
        self._passes += 1
        marks, self._marks = self._marks, []
        if self._passes <= COMPARED or self._passes % NOW_AND_THEN == 0:
            late = self._gradients.outdated()
            everyone = self._ranks.gather([float(len(marks)), sum(marks), float(late)])
            if any(one[:2] != everyone[0][:2] for one in everyone):
                raise RuntimeError(UNLIKE)
            if any(one[2] for one in everyone):
                self._gradients.forget()


def _own(loss: Any) -> Any:
    return None if loss is None else whole.value(loss)


def _by_torch() -> bool:
    """Say whether what comes without gradients is FSDP's own work, itself or under torch's decorator."""
    frames = sys._getframe(2), sys._getframe(3)
    return any(str(frame.f_globals.get("__name__", "")).startswith("torch.distributed.") for frame in frames)
