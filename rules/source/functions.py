"""What functions of libraries return and change, collectives among them."""

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.rules.source import expressions
from advisor.rules.source.value import DATA, LONE, REDUCED, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

Maker = Callable[["Walk", ast.AST, tuple[Value, ...], dict[str, Value]], Value]


def _clean(value: Value | None) -> None:
    """Mark that a collective has made a value the same on all ranks."""
    if value is None:
        return
    value.taint, value.split = frozenset({REDUCED}), ""
    if value.owner is not None and value.node is not None and value.role == "" and value.owner.role == "dict":
        value.owner.taint = frozenset({REDUCED})
    value.attrs = {}
    for item in value.items or ():
        if not item.role:
            item.taint, item.split = frozenset({REDUCED}), ""
    value.items = None if value.items is None else [Value(taint=frozenset({REDUCED})) for _ in value.items]


def _shared(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """A collective that leaves its first argument equal on all ranks."""
    target = args[0] if args else next(iter(words.values()), None)
    _clean(target)
    return walk.make(node, taint=frozenset({REDUCED}))


def _lone(position: int, word: str) -> Maker:
    """A collective whose result one rank alone has."""

    def make(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
        target = words.get(word) or (args[position] if len(args) > position else None)
        if target is not None:
            target.taint = frozenset({LONE})
        return walk.make(node)

    return make


def _scattered(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    if args:
        args[0].taint = frozenset({DATA})
    return walk.make(node)


def _fully_shard(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    target = words.get("module") or (args[0] if args else None)
    if target is None:
        return walk.make(node)
    if target.role in ("model", "", "lightning_module"):
        target.role = "fsdp2"
    return target


def _replicate(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node, "ddp", inner=args[0] if args else None, args=args, words=words)


def _convert(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return args[0] if args else walk.make(node, "model")


def _environment(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    name = args[0].const if args else None
    return expressions.variable(walk, node, name) if isinstance(name, str) else walk.make(node)


def _distributed(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node, split="distributed")


def _tensor(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node, "tensor", taint=expressions.spread(args), args=args, words=words)


def _update_environment(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    given = {name.strip("[]"): value for name, value in args[0].attrs.items()} if args else {}
    for name, value in (given | words).items():
        walk.emit("assign", f"os.environ.{name}", node, value)
    return walk.make(node)


def _split_dataset(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    parts = [walk.make(node, "dataset", inner=args[0] if args else None) for _ in range(4)]
    return walk.make(node, items=parts)


def _engine(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    engine = walk.make(node, "engine", inner=words.get("model"), args=args, words=words)
    loader = walk.make(node, "loader", attrs={"prepared": engine})
    return walk.make(node, items=[engine, walk.make(node, "optimizer"), loader, walk.make(node, "scheduler")])


def _subset(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    taint = expressions.spread([*args, *words.values()])
    return walk.make(node, "dataset", inner=args[0] if args else None, args=args, words=words, taint=taint)


FUNCTIONS: dict[str, Maker] = {
    **{
        f"torch.distributed.{name}": _shared
        for name in (
            *("all_reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object"),
            *("all_gather_into_tensor", "all_reduce_coalesced", "nn.all_reduce", "nn.functional.all_reduce"),
        )
    },
    "torch.distributed.reduce": _lone(0, "tensor"),
    "torch.distributed.gather": _lone(1, "gather_list"),
    "torch.distributed.gather_object": _lone(1, "object_gather_list"),
    "torch.distributed.scatter": _scattered,
    "torch.distributed.scatter_object_list": _scattered,
    "torch.distributed.is_initialized": _distributed,
    "torch.distributed.is_available": _distributed,
    "torch.distributed.is_torchelastic_launched": _distributed,
    "torch.distributed.fsdp.fully_shard": _fully_shard,
    "torch.distributed._composable.replicate": _replicate,
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": _convert,
    "os.environ.get": _environment,
    "os.environ.pop": _environment,
    "os.environ.update": _update_environment,
    "torch.tensor": _tensor,
    "torch.as_tensor": _tensor,
    "torch.stack": _tensor,
    "torch.cat": _tensor,
    "torch.utils.data.random_split": _split_dataset,
    "torch.utils.data.Subset": _subset,
    "deepspeed.initialize": _engine,
}
