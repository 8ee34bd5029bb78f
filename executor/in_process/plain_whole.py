"""Sharded weights of a plain script, as it knows them: whole where it pickles a model, reads, draws or clips them.

All ranks run the same lines, so what is gathered here is gathered by all.
"""

import copyreg
import functools
import sys
from collections.abc import Iterator
from typing import Any

from advisor.executor.in_process import whole

DRAWS = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_")
READS = ("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__format__")


def keep_face(module: Any) -> None:
    """Give a sharded module its class's name, and have it pickled and copied as the whole and plain one."""
    kind: Any = type(module)
    native = kind.__mro__[kind._orig_cls_mro_index]
    kind.__name__, kind.__qualname__, kind.__module__ = native.__name__, native.__qualname__, native.__module__
    kind.__deepcopy__ = whole.copy_whole
    kind.__reduce_ex__ = _pickled


def _pickled(module: Any, protocol: int) -> Any:
    plain = whole.copy_whole(module, {})
    make, args, *state = plain.__reduce_ex__(protocol)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined] # pickle would want the class that it was given
        make, args = copyreg._reconstructor, (type(plain), object, None)  # type: ignore[attr-defined]
    return make, args, *state


def steer_tensors() -> None:
    """Have numbers read from shards, and drawn into them, be those of the whole tensor."""
    import torch
    from torch.distributed.tensor import DTensor

    for name in READS:
        setattr(DTensor, name, _reading(getattr(DTensor, name)))
    dispatcher: Any = DTensor._op_dispatcher
    for name in DRAWS:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            dispatcher._custom_op_handlers.setdefault(getattr(packet, overload), _drawn)


def _reading(read: Any) -> Any:
    @functools.wraps(read)
    def whole_read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(whole.gathered(tensor), read.__name__)(*args, **kwargs)

    return whole_read


def _drawn(op: Any, args: Any, kwargs: Any) -> Any:
    """Draw for the whole tensor, as one process does, and keep this rank's part."""
    import torch

    target, *rest = args
    drawn = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    op(drawn, *rest, **kwargs)
    target.to_local().copy_(whole.sharded_like(drawn, target).to_local())
    return target


def steer_clipping(clip_grad: Any) -> None:
    """Have the norm of gradients in shards be a number as any other, also beside gradients that are whole."""
    for name, change in (("get_total_norm", _total), ("clip_grads_with_norm_", _one_by_one)):
        changed = change(getattr(clip_grad, f"_{name}"))
        for holder, known_as in ((clip_grad, f"_{name}"), (sys.modules.get("torch.nn.utils"), name)):
            if hasattr(holder, known_as):
                setattr(holder, known_as, changed)


def _total(total_norm: Any) -> Any:
    @functools.wraps(total_norm)
    def total(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> Any:
        tensors = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
        if not any(map(whole.is_sharded, tensors)):
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        norms = [total_norm(kind, norm_type, foreach=foreach) for kind in _kinds(tensors)]
        norms = [whole.gathered(norm) if whole.is_sharded(norm) else norm for norm in norms]
        return total_norm(norms, norm_type, error_if_nonfinite, False)

    return total


def _one_by_one(clip: Any) -> Any:
    @functools.wraps(clip)
    def clipped(parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None) -> None:
        parameters = [parameters] if hasattr(parameters, "grad_fn") else list(parameters)
        mixed = len(list(_kinds(parameters))) > 1
        clip(parameters, max_norm, total_norm, False if mixed else foreach)

    return clipped


def _kinds(tensors: list[Any]) -> Iterator[list[Any]]:
    """Yield the tensors in shards, then the whole ones, if there are any."""
    for sharded in (True, False):
        kind = [one for one in tensors if whole.is_sharded(one) == sharded]
        if kind:
            yield kind
