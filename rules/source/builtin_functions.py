"""What built-in functions return."""

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.rules.source import binding, expressions
from advisor.rules.source.value import NOTHING, UNKNOWN, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

Maker = Callable[["Walk", ast.AST, tuple[Value, ...], dict[str, Value]], Value]


def _computed(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    if len(args) == 1 and (args[0].role in ("rank", "local_rank", "world_size") or args[0].split):
        return args[0]
    if len(args) == 1 and args[0].items is not None:
        return walk.make(node, taint=args[0].taint, items=args[0].items, role=args[0].role)
    const = args[0].const if len(args) == 1 else UNKNOWN
    return walk.make(node, taint=expressions.spread([*args, *words.values()]), const=const)


def _around(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    inner = args[0] if args else words.get("iterable")
    return walk.make(node, "around", inner=inner, taint=inner.taint if inner else NOTHING, args=args, words=words)


def _enumerate(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    value = _around(walk, node, args, words)
    value.name = "enumerate"
    return value


def _zip(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node, name="zip", items=list(args))


def _next(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    if not args:
        return walk.make(node)
    loader = binding.drawn_from(args[0])
    drawn = binding.element(walk, node, args[0])
    if loader is not None:
        walk.emit("draw", "next", node, drawn, receiver=loader)
    return drawn


def _filter(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return args[1] if len(args) > 1 else walk.make(node)


def _length(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node)


def _getattr(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    if len(args) > 1 and isinstance(args[1].const, str):
        return expressions.attribute(walk, node, args[0], args[1].const)
    return walk.make(node)


def _setattr(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    if len(args) > 2 and isinstance(args[1].const, str):
        args[0].attrs[args[1].const] = args[2]
        walk.emit("assign", args[1].const, node, args[2], receiver=args[0])
    return walk.make(node)


BUILTINS: dict[str, Maker] = {
    **dict.fromkeys(
        ("int", "float", "bool", "str", "abs", "round", "min", "max", "sum", "any", "all", "list", "tuple"), _computed
    ),
    **dict.fromkeys(("iter", "reversed", "tqdm.tqdm", "itertools.islice", "itertools.cycle", "tqdm"), _around),
    **dict.fromkeys(("rich.progress.track", "accelerate.skip_first_batches", "sorted"), _around),
    "enumerate": _enumerate,
    "zip": _zip,
    "next": _next,
    "filter": _filter,
    "len": _length,
    "getattr": _getattr,
    "setattr": _setattr,
}
