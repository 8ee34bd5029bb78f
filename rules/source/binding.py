"""How names, attributes and items are bound to values, and what a loop draws from what it runs over."""

import ast
from typing import TYPE_CHECKING

from advisor.rules.source import branches, conditions, expressions
from advisor.rules.source.value import DATA, NOTHING, REDUCED, WRAPPED, Scope, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk


def drawn_from(value: Value) -> Value | None:
    """Return the loader that a loop over the value draws from: `enumerate(tqdm(loader))`."""
    for _ in range(8):
        if value.role == "loader":
            return value
        if value.role == "around" and value.inner is not None:
            value = value.inner
        else:
            return (
                next((item for item in value.items or () if item.role == "loader"), None)
                if value.name == "zip"
                else None
            )
    return None


def element(walk: "Walk", node: ast.AST, over: Value) -> Value:
    """Return what a loop gets from what it runs over."""
    if over.role == "around" and over.inner is not None:
        inner = element(walk, node, over.inner)
        return walk.make(node, items=[walk.make(node), inner]) if over.name == "enumerate" else inner
    if over.name == "zip" and over.items:
        return walk.make(node, items=[element(walk, node, item) for item in over.items])
    if over.role == "loader":
        return walk.make(node, "batch", taint=frozenset({DATA}) if differs(over) else NOTHING, inner=over)
    if over.role in ("parameters", "named_parameters"):
        parameter = walk.make(node, "parameter", inner=over.inner, owner=over)
        return walk.make(node, items=[walk.make(node), parameter]) if over.role == "named_parameters" else parameter
    if over.role == "generator" and over.items:
        return over.items[0]
    if over.role in ("layers", "layer", "model") or over.is_a("model", *WRAPPED):
        return walk.make(node, "layer", owner=over)
    if over.role == "dict":
        return walk.make(node)
    if over.items:
        joined = _one_of(walk, node, over.items)
        assert joined is not None
        return joined
    return walk.make(node, taint=over.taint, owner=over)


def _one_of(walk: "Walk", node: ast.AST, items: list[Value]) -> Value | None:
    """Return what may be any of some values; of tuples of one length, part by part."""
    lengths = {len(item.items) if item.items is not None else None for item in items}
    if len(lengths) == 1 and None not in lengths and len(items) > 1:
        columns = zip(*(item.items or [] for item in items), strict=True)
        parts = [branches.join_all(walk, list(reversed(column))) or walk.make(node) for column in columns]
        return walk.make(node, items=parts, taint=expressions.spread(items))
    return branches.join_all(walk, list(reversed(items)))


def differs(loader: Value) -> bool:
    """Say whether a loader surely gives ranks different batches."""
    sampler = loader.argument("sampler") or loader.argument("batch_sampler")
    if sampler is not None and sampler.is_a("sampler"):
        return True
    shuffle = loader.argument("shuffle")
    return "prepared" in loader.attrs or (shuffle is not None and shuffle.const is True)


def bind(walk: "Walk", target: ast.AST, value: Value, scope: Scope) -> None:
    """Assign to a name, an attribute, an item or several of them."""
    if isinstance(target, ast.Name):
        _bind_name(walk, target.id, value, scope)
    elif isinstance(target, ast.Attribute):
        owner = expressions.evaluate(walk, target.value, scope)
        walk.emit("assign", target.attr, target, value, receiver=owner)
        conditions.tell(value, target.attr)
        if value.role == "model" and owner.role in ("model", "lightning_module") and value.owner is None:
            value.owner = owner  # a layer of a model
        _store(walk, owner, target.attr, value, scope)
    elif isinstance(target, ast.Subscript):
        _bind_item(walk, target, value, scope)
    elif isinstance(target, ast.Tuple | ast.List):
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        same = value.items is not None and len(value.items) == len(target.elts) and not starred
        for index, part in enumerate(target.elts):
            given = value.items[index] if same and value.items else None
            bind(walk, part, given or walk.make(target, taint=value.taint, inner=value.inner, owner=value), scope)
    elif isinstance(target, ast.Starred):
        bind(walk, target.value, value, scope)


def _bind_name(walk: "Walk", name: str, value: Value, scope: Scope) -> None:
    conditions.tell(value, name)
    if name in scope.globals_used:
        outer = scope.outer
        while outer is not None and name not in outer.names:
            outer = outer.outer
        names = outer.names if outer is not None else scope.module.globals
        names[name] = branches.either(walk, names[name], value) if name in names else value
        return
    scope.names[name] = value


def _store(walk: "Walk", owner: Value, name: str, value: Value, scope: Scope) -> None:
    """Set an attribute or an item; under a condition it may keep what it was."""
    before = owner.attrs.get(name)
    guards = walk.guards[scope.guards :]
    for guard in guards:
        if guard.handler or guard.split in ("distributed", "alone") or guard.rest:
            continue
        value = branches.joined(walk, [{"": value}, {"": before or value}], guard.value, {})[""]
        if guard.value.taint and before is None:
            value = branches._marked(value, branches.reason(guard.value, guard.split), guard.split)
    if before is not None and any(guard.split == "alone" for guard in guards):
        value = branches.either(walk, value, before)
    owner.attrs[name] = value


def _bind_item(walk: "Walk", target: ast.Subscript, value: Value, scope: Scope) -> None:
    owner, key = expressions.evaluate(walk, target.value, scope), expressions.evaluate(walk, target.slice, scope)
    name = f"{owner.name}.{key.const}" if owner.name == "os.environ" and key.known else "[]"
    walk.emit("assign", name, target, value, receiver=owner, args=(key,))
    if owner.role in WRAPPED or owner.role == "model":
        return
    if key.known and owner.name != "os.environ":
        _store(walk, owner, f"[{key.const}]", value, scope)
    owner.taint |= value.taint - {REDUCED}


def read(walk: "Walk", target: ast.AST, scope: Scope) -> Value:
    return expressions.evaluate(walk, target if isinstance(target, ast.expr) else None, scope)
