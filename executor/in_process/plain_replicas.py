"""Models of a plain script, replicated in place: equal on all ranks from the start, gradients averaged after each pass.

A model is known by an optimizer that is built over its parameters. Nothing is wrapped and no hook lies on a module, so
copies, pickles and `type(model)` are those of one process.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from advisor.executor.in_process.plain_share import Ranks, place

BUCKET = 25 * 2**20  # bytes reduced at once, unless the plan says another number
COMPARED, NOW_AND_THEN = 3, 100  # the first batches and steps are compared between ranks, then each hundredth
NO_BATCH = (
    "this backward pass{where} uses no batch of a DataLoader, so every rank would train on the same data: put the data "
    "into torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=..., shuffle=True) and loop "
    "over it, calling model.train() before the loop; or train on one GPU: --gpus 1"
)
UNLIKE = (
    "the ranks draw different batches: what the sampler or the dataset draws at random must come from torch's, numpy's "
    "or python's global generator, or from one with a fixed seed; or train on one GPU: --gpus 1"
)
DRIFT = (
    "parameters or buffers differ between ranks after step {step}: the script changes them, or gradients, by more than "
    "backward() and optimizer.step(), such as noise of its own or statistics of a slice; train on one GPU: --gpus 1"
)
SPARSE = "sparse gradients are not averaged between ranks: leave sparse=True out, or train on one GPU: --gpus 1"
LBFGS = "LBFGS decides by losses that each rank has of its own slice: use another optimizer, or --gpus 1"
GRAPH = "backward(create_graph=True) into parameters can't be averaged between ranks: use torch.autograd.grad"


class Replicas:
    def __init__(self, ranks: Ranks, bucket_mb: float | None, observe: Callable[[Any], None]) -> None:
        self._ranks, self._observe = ranks, observe
        self._bucket = BUCKET if bucket_mb is None else int(bucket_mb * 2**20)
        self._families: list[list[weakref.ref[Any]]] = []  # the parameters of each model
        self._known: set[int] = set()
        self.adopted = 0  # parameters so far
        self._roots: list[weakref.ref[Any]] = []
        self._marks: list[float] = []  # of the batches since the last backward pass
        self._backwards = self._steps = 0
        self._hidden: dict[int, Any] = {}  # losses, by the ids of their scaled ones
        self.on_backward: Callable[[], None] = lambda: None
        self.on_evaluation: Callable[[], None] = lambda: None
        self.on_loss: Callable[[Any], None] = lambda loss: None  # with the batch's own loss

    def training(self) -> bool:
        """Say whether a model is in training mode, and known by its optimizer."""
        return any(root.training for ref in self._roots if (root := ref()) is not None)

    def knows(self, parameter: Any) -> bool:
        return id(parameter) in self._known

    def expect(self, mark: float) -> None:
        """Take the mark of a batch that all ranks must have drawn."""
        self._marks.append(mark)

    def steer_optimizers(self, module: Any) -> None:
        add = module.Optimizer.add_param_group
        ranks = self._ranks

        @functools.wraps(add)
        def added(optimizer: Any, param_group: Any) -> None:
            add(optimizer, param_group)
            if type(optimizer).__name__ == "LBFGS" and ranks.ranks > 1 and not ranks.calls:
                raise RuntimeError(LBFGS)
            self.adopt(optimizer.param_groups[-1]["params"])

        def stepped(*_: Any) -> None:
            self._steps += 1
            if self._steps <= COMPARED or self._steps % NOW_AND_THEN == 0:
                self.compare()

        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.Optimizer.add_param_group = added
        module.register_optimizer_step_post_hook(stepped)

    def adopt(self, parameters: list[Any]) -> None:
        """Make the models that own these parameters equal on all ranks, and average their gradients from now on."""
        import torch

        new = [parameter for parameter in parameters if id(parameter) not in self._known]
        if not new:
            return
        self._ranks.start()
        for root, owned in families(new):
            family = [one for one in owned if id(one) not in self._known]
            buffers = [] if root is None else list(root.buffers())
            if self._ranks.ranks > 1:
                with torch.no_grad():
                    spread([*family, *buffers])
            self.adopted += len(family)
            for parameter in family:
                self._known.add(id(parameter))
                weakref.finalize(parameter, self._known.discard, id(parameter))
            if family:
                self._families.append([weakref.ref(parameter) for parameter in family])
            if root is not None:
                self._roots.append(weakref.ref(root))
                self._observe(root)

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
            if not self._families:
                original(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
                return
            before = self._versions()
            roots = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
            given = [grad_tensors] * len(roots) if grad_tensors is None or len(roots) == 1 else list(grad_tensors)
            given = [one[0] if isinstance(one, list | tuple) else one for one in given]
            scaled = [self._scaled(root, one) for root, one in zip(roots, given, strict=True)]
            original(roots, scaled, retain_graph, create_graph, *args, **kwargs)
            self._passed(before, roots[0] if len(roots) == 1 and given[0] is None else None, retain_graph, create_graph)

        autograd.backward = backward

    def steer_grad_mode(self, grad_mode: Any) -> None:
        """Hear of work without gradients: evaluation, where no backward pass follows it."""
        for kind in (grad_mode.no_grad, grad_mode.inference_mode):
            kind.__enter__ = self._hearing(kind.__enter__)

    def _hearing(self, enter: Any) -> Any:
        @functools.wraps(enter)
        def entered(context: Any) -> Any:
            if self._ranks.active:
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

    def _scaled(self, root: Any, given: Any) -> Any:
        import torch

        factor = self._ranks.factor()
        if factor == 1 or (given is None and root.numel() != 1):
            return given
        return torch.full_like(root, factor) if given is None else given * factor

    def _versions(self) -> list[list[tuple[Any, int | None]]]:
        self._families = [family for family in self._families if any(one() is not None for one in family)]
        return [[_version(one()) for one in family] for family in self._families]

    def _passed(self, before: list[list[tuple[Any, int | None]]], loss: Any, retained: Any, graph: bool) -> None:
        """Average what the pass has added to gradients."""
        import torch

        touched = []
        for family, versions in zip(self._families, before, strict=True):
            pairs = [(one(), version) for one, version in zip(family, versions, strict=True)]
            new = {i for i, (one, version) in enumerate(pairs) if one is not None and _version(one) != version}
            if new:
                touched.append(([one for one, _ in pairs], new))
        if not touched:
            return
        apart = self._ranks.begun if self._ranks.calls else self._ranks.share is not None
        if not apart and self._ranks.ranks > 1:
            raise RuntimeError(NO_BATCH.format(where=place()))
        if graph and self._ranks.ranks > 1:
            raise RuntimeError(GRAPH)
        self.on_backward()
        self._compare_batches()
        with torch.no_grad():
            mean = self._reduce(touched, loss)
        if mean is None:
            return
        original = self._hidden.pop(id(loss), None)
        self._hidden.clear()
        if not retained and loss.grad_fn is not None and self._ranks.ranks > 1:
            shown = mean.to(loss.dtype)
            if original is not None and float(loss.detach()):
                original.data.copy_(shown * (original.detach() / loss.detach()))
            loss.data.copy_(shown)
        self.on_loss(mean if original is None else original.detach())

    def _compare_batches(self) -> None:
        self._backwards += 1
        marks, self._marks = self._marks, []
        if self._ranks.ranks > 1 and (self._backwards <= COMPARED or self._backwards % NOW_AND_THEN == 0):
            everyone = self._ranks.gather([float(len(marks)), sum(marks)])
            if any(one != everyone[0] for one in everyone):
                raise RuntimeError(UNLIKE)

    def _reduce(self, touched: list[tuple[list[Any], set[int]]], loss: Any) -> Any:
        """Average the gradients of each model that the pass reached; return the loss of the whole batch, if it is one.

        A parameter that this rank's slice did not reach but another's did gets its gradient as well; one that none
        reached keeps none.
        """
        import torch
        import torch.distributed as dist

        mean = own = loss.detach().clone() if loss is not None and loss.numel() == 1 else None
        if self._ranks.ranks == 1:
            return mean
        for parameters, new in touched:
            parts = [(one, i in new) for i, one in enumerate(parameters) if one is not None and one.requires_grad]
            if any(one.grad is not None and one.grad.is_sparse for one, _ in parts):
                raise RuntimeError(SPARSE)
            device = parts[0][0].device
            flags = torch.tensor([float(mine) for _, mine in parts] + [0.0], device=device, dtype=torch.float64)
            if own is not None:
                flags[-1] = own.double().reshape(()) * (self._ranks.factor() / self._ranks.ranks)
            works = [dist.all_reduce(flags, async_op=True)]
            flats = []
            for bucket in buckets([one for one, _ in parts], self._bucket):
                pieces = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket]
                flat = torch.cat([piece.reshape(-1) for piece in pieces])
                works.append(dist.all_reduce(flat, async_op=True))
                flats.append((bucket, flat))
            for work in works:
                work.wait()
            # Where this rank has all of them there is nothing to ask, and no GPU to wait for.
            reached = {id(one) for one, mine in parts if mine}
            if len(reached) < len(parts):
                reached = {id(one) for (one, _), ranks in zip(parts, flags.tolist(), strict=False) if ranks}
            for bucket, flat in flats:
                for one, piece in zip(
                    bucket, torch.split(flat.div_(self._ranks.ranks), [one.numel() for one in bucket]), strict=True
                ):
                    if id(one) in reached and one.grad is not None:
                        one.grad.copy_(piece.view_as(one))
                    elif id(one) in reached:
                        one.grad = piece.view_as(one).clone()
            mean = None if own is None else flags[-1].reshape(own.shape)
        return mean

    def compare(self) -> None:
        """Stop on every rank where parameters or buffers differ between ranks."""
        import torch

        if self._ranks.ranks == 1 or not self._ranks.begun:
            return
        with torch.no_grad():
            alive = [one for family in self._families for ref in family if (one := ref()) is not None]
            alive += [one for ref in self._roots if (root := ref()) is not None for one in root.buffers()]
            sums = [one.detach().double().sum() for one in alive]
            check = float(torch.stack([one.cpu() for one in sums]).sum()) if sums else 0.0
        everyone = self._ranks.gather([check, float(len(alive))])
        if any(one != everyone[0] for one in everyone) and check == check:  # noqa: PLR0124 - not NaN
            raise RuntimeError(DRIFT.format(step=self._steps))


def _version(parameter: Any) -> tuple[int | None, int | None]:
    gradient = None if parameter is None else parameter.grad
    return (None, None) if gradient is None else (id(gradient), gradient._version)


def families(parameters: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the outermost modules that own these parameters, each with all of its own, in the order of the first.

    Parameters that no module owns come last, without one.
    """
    from torch import nn

    wanted = {id(parameter): i for i, parameter in enumerate(parameters)}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_parameters" in vars(one)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    found = []
    for root in modules:
        if id(root) not in inner:
            own = list(root.parameters())
            places = [wanted[id(one)] for one in own if id(one) in wanted]
            if places:
                found.append((min(places), root, own))
    taken: set[int] = set()
    for _, root, own in sorted(found, key=lambda one: (one[0], len(one[2]))):
        yield root, own
        taken.update(map(id, own))
    left = [parameter for parameter in parameters if id(parameter) not in taken]
    if left:
        yield None, left


def spread(tensors: list[Any]) -> None:
    """Give all ranks rank 0's tensors."""
    import torch.distributed as dist

    for tensor in tensors:
        there = tensor.detach().contiguous()
        dist.broadcast(there, 0)
        if there.data_ptr() != tensor.data_ptr():
            tensor.copy_(there)


def buckets(parameters: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield parameters of one device and dtype in groups of about `size` bytes."""
    kinds: dict[Any, list[Any]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for same in kinds.values():
        bucket: list[Any] = []
        filled = 0
        for parameter in same:
            bucket.append(parameter)
            filled += parameter.numel() * parameter.element_size()
            if filled >= size:
                yield bucket
                bucket, filled = [], 0
        if bucket:
            yield bucket
