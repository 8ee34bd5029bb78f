"""What is known of the value of an expression."""

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from advisor.rules.source import binding, branches, calls, conditions
from advisor.rules.source.known_names import VARIABLES, canonical
from advisor.rules.source.value import (
    DATA,
    LOCAL_RANK,
    NOTHING,
    RANK,
    REDUCED,
    UNKNOWN,
    WRAPPED,
    Class,
    Function,
    Scope,
    Value,
)

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

# Attributes of things that libraries make: role of the thing, attribute -> role, or how it splits ranks.
ATTRIBUTES = {
    ("accelerator", "process_index"): "rank",
    ("accelerator", "local_process_index"): "local_rank",
    ("accelerator", "num_processes"): "world_size",
    ("accelerator", "device"): "own_device",
    ("fabric", "global_rank"): "rank",
    ("fabric", "local_rank"): "local_rank",
    ("fabric", "world_size"): "world_size",
    ("fabric", "device"): "own_device",
}
DEEPEST = 150  # expressions, blocks and calls within each other; what lies deeper stays unknown
PLACES = ("device", "own_device")  # which GPU a tensor is on says nothing about its value
SHAPE = ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "size", "dim", "numel")
SPREAD = ("tensor", "batch", "", "clock", "checkpoint", "loss")  # roles whose attributes differ as they do


def evaluate(walk: "Walk", node: ast.expr | None, scope: Scope) -> Value:
    """Return what is known of an expression's value; the calls in it happen."""
    walk.steps += 1
    if node is None:
        return walk.make(node, const=None)
    handler = EXPRESSIONS.get(type(node))
    if handler is None or walk.depth > DEEPEST:
        return walk.make(node)
    walk.depth += 1
    try:
        value: Value = handler(walk, node, scope)
        return value
    finally:
        walk.depth -= 1


def combined(walk: "Walk", node: ast.AST, *values: Value) -> Value:
    """Return a value computed from others: it differs between ranks as they do."""
    return walk.make(node, taint=spread(values), items=_parameters_among(values))


def spread(values: Iterable[Value]) -> frozenset[str]:
    taint = NOTHING
    for value in values:
        if value.taint and value.role not in PLACES:
            taint |= value.taint
    return taint - {REDUCED} if DATA in taint else taint


def _parameters_among(values: Iterable[Value]) -> list[Value] | None:
    found = [value for value in values if value.role in ("parameters", "parameter") or value.items]
    return found or None


def _constant(walk: "Walk", node: ast.Constant, scope: Scope) -> Value:
    return walk.make(node, const=node.value)


def _name(walk: "Walk", node: ast.Name, scope: Scope) -> Value:
    inner: Scope | None = scope
    while inner is not None:
        value = inner.names.get(node.id)
        if value is not None:
            return value
        inner = inner.outer
    value = scope.module.globals.get(node.id)
    if value is None:
        value = walk.make(node, name=node.id)
        conditions.tell(value, node.id)
        if value.role or value.split:
            scope.module.globals[node.id] = value
    return value


def _attribute(walk: "Walk", node: ast.Attribute, scope: Scope) -> Value:
    return attribute(walk, node, evaluate(walk, node.value, scope), node.attr)


def attribute(walk: "Walk", node: ast.AST, owner: Value, name: str) -> Value:
    """Return an attribute; the same one each time that it is asked for."""
    found = owner.attrs.get(name)
    if found is not None:
        return found
    member = owner.code.find(name) if isinstance(owner.code, Class) else None
    if member is not None:
        return _member(walk, node, owner, member)
    if owner.role == "module" and owner.name:
        given = walk.make(node, name=canonical(f"{owner.name}.{name}"))
        if not owner.name.startswith("torch"):
            conditions.tell(given, name)
        return given
    if owner.inner is not None:
        if (name == "module" and owner.role in WRAPPED) or (name == "_orig_mod" and owner.role == "compiled"):
            return owner.inner
        if owner.role == "compiled" and name == "module":
            return attribute(walk, node, owner.inner, name)
    value = walk.make(node, ATTRIBUTES.get((owner.role, name), ""), owner=owner)
    if owner.name and not owner.role:
        value.name = canonical(f"{owner.name}.{name}")
    if owner.role in SPREAD and name not in SHAPE:
        value.taint |= owner.taint
    if owner.role in ("model", "layer"):
        value.role = "layer"
    conditions.tell(value, name)
    if len(owner.attrs) < 500 and not (owner.role in SPREAD and owner.taint):
        owner.attrs[name] = value
    return value


def _member(walk: "Walk", node: ast.AST, owner: Value, member: Value) -> Value:
    """Return a member of an object's class: a property's value, a method bound to the object, or a field."""
    if member.role == "property":
        return calls.follow(walk, node, member, (owner,), {})
    if isinstance(member.code, Function) and member.role != "staticmethod":
        return member.changed(owner=owner)
    return member


def _call(walk: "Walk", node: ast.Call, scope: Scope) -> Value:
    return calls.call(walk, node, scope)


def _subscript(walk: "Walk", node: ast.Subscript, scope: Scope) -> Value:
    owner, key = evaluate(walk, node.value, scope), evaluate(walk, node.slice, scope)
    if owner.name == "os.environ" and isinstance(key.const, str):
        return variable(walk, node, key.const)
    if owner.items is not None and isinstance(key.const, int) and -len(owner.items) <= key.const < len(owner.items):
        return owner.items[key.const]
    if key.known and f"[{key.const}]" in owner.attrs:
        return owner.attrs[f"[{key.const}]"]
    if owner.role in ("model", "layer") or owner.is_a("model"):
        return walk.make(node, "layer", owner=owner)
    if owner.role in ("dataset", "hf_dataset"):
        return walk.make(node, owner.role, inner=owner, taint=key.taint | owner.taint)
    taint = (owner.taint | key.taint) if owner.role in SPREAD else NOTHING
    value = walk.make(node, taint=taint, owner=owner, items=owner.items)
    if key.known and not taint:
        owner.attrs[f"[{key.const}]"] = value
        if isinstance(key.const, str):
            conditions.tell(value, key.const)
    return value


def variable(walk: "Walk", node: ast.AST, name: str) -> Value:
    return walk.make(node, VARIABLES.get(name, ""), name=f"os.environ.{name}")


def _binary(walk: "Walk", node: ast.BinOp, scope: Scope) -> Value:
    return computed(walk, node, node.op, evaluate(walk, node.left, scope), evaluate(walk, node.right, scope))


def computed(walk: "Walk", node: ast.AST, operator: ast.operator, left: Value, right: Value) -> Value:
    """Return the value of two others with an operator between them."""
    if isinstance(operator, ast.Mod) and left.role == "rank":
        return walk.make(node, "local_rank")
    value = combined(walk, node, left, right)
    if isinstance(operator, ast.Add) and (left.items is not None or right.items is not None):
        value.items = [*(left.items or []), *(right.items or [])]
    if left.known and right.known:
        value.const = _folded(operator, left.const, right.const)
    if left.role == "tensor" or right.role == "tensor":
        value.role, value.inner = "tensor", left if left.role == "tensor" else right
        value.args = (left, right)
        value.name = f"tensor {type(operator).__name__}"
    return value


NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}


def _folded(operator: ast.operator, left: Any, right: Any) -> Any:
    """Compute with numbers that the script writes down; anything else is unknown."""
    numeric = all(isinstance(side, int | float) and abs(side) < 1e15 for side in (left, right))
    if type(operator) is ast.Add and isinstance(left, str) and isinstance(right, str) and len(left + right) < 1000:
        return left + right
    if not numeric or type(operator) not in NUMBERS or (not right and type(operator) in (ast.Div, ast.FloorDiv)):
        return UNKNOWN
    return NUMBERS[type(operator)](left, right)


def _unary(walk: "Walk", node: ast.UnaryOp, scope: Scope) -> Value:
    value = evaluate(walk, node.operand, scope)
    if isinstance(node.op, ast.Not):
        if value.role in ("rank", "local_rank"):
            return walk.make(node, taint=value.taint, split="first")
        const = not value.const if isinstance(value.const, bool) else UNKNOWN
        return walk.make(node, taint=value.taint, split=branches.opposite(value), const=const)
    if isinstance(node.op, ast.USub) and isinstance(value.const, int | float):
        return walk.make(node, const=-value.const)
    return combined(walk, node, value)


def _boolean(walk: "Walk", node: ast.BoolOp, scope: Scope) -> Value:
    values = [evaluate(walk, part, scope) for part in node.values]
    tests = [conditions.as_condition(value) for value in values]
    split = (branches.conjunction if isinstance(node.op, ast.And) else branches.disjunction)(tests)
    chosen = next((value for value in values if value.role), None)
    if chosen is not None and isinstance(node.op, ast.Or):  # sampler or SequentialSampler(dataset)
        return chosen
    partly = any(value.partly or (not value.split and not value.known) for value in tests)
    return walk.make(node, taint=spread(values), split=split, partly=partly and isinstance(node.op, ast.And))


def _compare(walk: "Walk", node: ast.Compare, scope: Scope) -> Value:
    left = evaluate(walk, node.left, scope)
    rights = [evaluate(walk, part, scope) for part in node.comparators]
    value = walk.make(node, taint=spread([left, *rights]))
    if len(rights) != 1:
        value.split = "some" if value.taint & {RANK, LOCAL_RANK} else ""
        return value
    right, operator = rights[0], type(node.ops[0])
    if right.role in ("rank", "local_rank") and left.role not in ("rank", "local_rank"):
        left, right, operator = right, left, conditions.MIRRORED.get(operator, operator)
    conditions.split_by(value, left, right, operator)
    if operator in (ast.In, ast.NotIn):
        value.taint &= left.taint  # which names a dictionary has, not what they stand for
    if operator in (ast.Is, ast.IsNot) and right.const is None:
        value.taint -= {DATA}  # whether there is a batch, not what is in it
    return value


def _if_else(walk: "Walk", node: ast.IfExp, scope: Scope) -> Value:
    test = evaluate(walk, node.test, scope)
    with walk.under(walk.guard(node.test, test)):
        yes = evaluate(walk, node.body, scope)
    with walk.under(walk.guard(node.test, test, negated=True)):
        no = evaluate(walk, node.orelse, scope)
    return branches.joined(walk, [{"": yes}, {"": no}], test, {"": no})[""]


def _list(walk: "Walk", node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Value:
    items = [evaluate(walk, part, scope) for part in node.elts]
    return walk.make(node, items=items, taint=spread(items))


def _dict(walk: "Walk", node: ast.Dict, scope: Scope) -> Value:
    keys = [evaluate(walk, key, scope) if key is not None else None for key in node.keys]
    values = [evaluate(walk, part, scope) for part in node.values]
    attrs = {f"[{key.const}]": value for key, value in zip(keys, values, strict=True) if key and key.known}
    for key, value in zip(keys, values, strict=True):
        if key is None:
            attrs.update(value.attrs)
    return walk.make(node, "dict", items=values, attrs=attrs, taint=spread(values))


def _comprehension(
    walk: "Walk", node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
) -> Value:
    inner = Scope(dict(scope.names), scope.module, scope.outer, scope.globals_used)
    taint: frozenset[str] = NOTHING
    drawn: list[Value] = []
    for generator in node.generators:
        over = evaluate(walk, generator.iter, inner)
        loader = binding.drawn_from(over)
        if loader is not None:
            drawn.append(loader)
        binding.bind(walk, generator.target, binding.element(walk, generator.iter, over), inner)
        for test in generator.ifs:
            taint |= evaluate(walk, test, inner).taint
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    values = [evaluate(walk, part, inner) for part in parts]
    return walk.make(node, "dict" if isinstance(node, ast.DictComp) else "", items=values, taint=spread(values) | taint)


def _joined_string(walk: "Walk", node: ast.JoinedStr, scope: Scope) -> Value:
    values = [evaluate(walk, part.value, scope) for part in node.values if isinstance(part, ast.FormattedValue)]
    parts = [part.value if isinstance(part, ast.Constant) else "" for part in node.values]
    start = parts[0] if parts else ""
    return walk.make(node, "text", taint=spread(values), name=str(start), items=values)


def _lambda(walk: "Walk", node: ast.Lambda, scope: Scope) -> Value:
    return walk.make(node, "function", name="lambda", code=Function(node, scope.module, scope))


def _named(walk: "Walk", node: ast.NamedExpr, scope: Scope) -> Value:
    value = evaluate(walk, node.value, scope)
    binding.bind(walk, node.target, value, scope)
    return value


def _inside(walk: "Walk", node: Any, scope: Scope) -> Value:
    """Starred, await and yield from: what is inside."""
    return evaluate(walk, node.value, scope)


def _slice(walk: "Walk", node: ast.Slice, scope: Scope) -> Value:
    parts = [evaluate(walk, part, scope) for part in (node.lower, node.upper, node.step) if part is not None]
    return walk.make(node, "slice", taint=spread(parts), items=parts)


def _yield(walk: "Walk", node: ast.Yield, scope: Scope) -> Value:
    value = evaluate(walk, node.value, scope)
    scope.returned.append(walk.make(node, "generator", items=[value], taint=value.taint))
    return walk.make(node)


EXPRESSIONS: dict[type[ast.expr], Any] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _if_else,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Set: _list,
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.JoinedStr: _joined_string,
    ast.Lambda: _lambda,
    ast.NamedExpr: _named,
    ast.Starred: _inside,
    ast.Await: _inside,
    ast.YieldFrom: _inside,
    ast.Yield: _yield,
    ast.Slice: _slice,
}
