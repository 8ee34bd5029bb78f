"""What is known of the value of an expression, and how names, attributes and items are bound to it."""

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from advisor.rules.source import branches, calls
from advisor.rules.source.library import IN_GROUP, IS_DISTRIBUTED, IS_FIRST, IS_LOCAL_FIRST, VARIABLES, canonical
from advisor.rules.source.roles import role_of_name
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
        tell(value, node.id)
        if value.role or value.split:
            scope.module.globals[node.id] = value
    return value


def tell(value: Value, name: str) -> None:
    """Let a name say what a value is of which nothing else is known."""
    if value.role or value.known or value.code is not None or value.items is not None or value.split:
        return
    role = role_of_name(name)
    if value.taint and not (role in ("rank", "local_rank") and value.taint <= {RANK, LOCAL_RANK}):
        return
    if role:
        value.role = role
        value.taint = {"rank": frozenset({RANK}), "local_rank": frozenset({LOCAL_RANK})}.get(role, NOTHING)
    elif IS_FIRST.match(name):
        value.split, value.taint = "first", frozenset({RANK})
    elif IS_LOCAL_FIRST.match(name):
        value.split, value.taint = "first", frozenset({LOCAL_RANK})
    elif IN_GROUP.match(name):
        value.taint = frozenset({RANK})
    elif IS_DISTRIBUTED.match(name):
        value.split = "distributed"


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
            tell(given, name)
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
    tell(value, name)
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
            tell(value, key.const)
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
    conditions = [as_condition(value) for value in values]
    split = (branches.conjunction if isinstance(node.op, ast.And) else branches.disjunction)(conditions)
    chosen = next((value for value in values if value.role), None)
    if chosen is not None and isinstance(node.op, ast.Or):  # sampler or SequentialSampler(dataset)
        return chosen
    partly = any(value.partly or (not value.split and not value.known) for value in conditions)
    return walk.make(node, taint=spread(values), split=split, partly=partly and isinstance(node.op, ast.And))


def as_condition(value: Value) -> Value:
    """Read a rank as the condition that it is: `if rank:`, `rank and ...`."""
    if value.role in ("rank", "local_rank") and not value.split:
        return value.changed(split="others")
    return value


def _compare(walk: "Walk", node: ast.Compare, scope: Scope) -> Value:
    left = evaluate(walk, node.left, scope)
    rights = [evaluate(walk, part, scope) for part in node.comparators]
    value = walk.make(node, taint=spread([left, *rights]))
    if len(rights) != 1:
        value.split = "some" if value.taint & {RANK, LOCAL_RANK} else ""
        return value
    right, operator = rights[0], type(node.ops[0])
    if right.role in ("rank", "local_rank") and left.role not in ("rank", "local_rank"):
        left, right, operator = right, left, MIRRORED.get(operator, operator)
    _split_by(value, left, right, operator)
    if operator in (ast.In, ast.NotIn):
        value.taint &= left.taint  # which names a dictionary has, not what they stand for
    if operator in (ast.Is, ast.IsNot) and right.const is None:
        value.taint -= {DATA}  # whether there is a batch, not what is in it
    return value


MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
ALONE = {
    *((ast.Eq, -1), (ast.Is, None), (ast.Eq, None), (ast.Lt, 0)),
}
TOGETHER = {
    *((ast.NotEq, -1), (ast.IsNot, None), (ast.NotEq, None), (ast.GtE, 0), (ast.Gt, -1)),
}
FIRST = {(ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1), (ast.Is, 0)}
OTHERS = {(ast.NotEq, 0), (ast.Gt, 0), (ast.GtE, 1), (ast.IsNot, 0)}
ONE_RANK = {(ast.Eq, 1), (ast.LtE, 1), (ast.Lt, 2)}
MANY_RANKS = {(ast.NotEq, 1), (ast.Gt, 1), (ast.GtE, 2)}


def _split_by(value: Value, left: Value, right: Value, operator: type[ast.cmpop]) -> None:
    """Say which ranks a comparison is true on."""
    const = right.const
    pair = (operator, const) if isinstance(const, int | None) and right.known else None
    if left.role in ("rank", "local_rank"):
        if operator in (ast.In, ast.NotIn) and right.items is not None:
            known = {item.const for item in right.items}
            inside = "first" if known <= {0, -1} else "some"
            value.split = inside if operator is ast.In else branches.negated(inside)
        elif pair in ALONE:
            value.split, value.taint = "alone", NOTHING
        elif pair in TOGETHER:
            value.split, value.taint = "distributed", NOTHING
        elif pair in FIRST:
            value.split = "first"
        elif pair in OTHERS:
            value.split = "others"
        else:
            value.split = "some" if right.known or right.role == "world_size" else "unsure"
    elif left.role == "world_size" or left.name == "torch.cuda.device_count()":
        value.split = "distributed" if pair in MANY_RANKS else "alone" if pair in ONE_RANK else ""
        value.taint = NOTHING
    elif right.name == "os.environ" and left.const in VARIABLES and operator in (ast.In, ast.NotIn):
        value.split = "distributed" if operator is ast.In else "alone"
    elif left.split in ("first", "others", "distributed", "alone") and const in (True, False, None, 0, 1):
        same = (operator in (ast.Eq, ast.Is)) == (const in (True, 1) and const is not None)
        value.split = left.split if same else branches.negated(left.split)
    elif value.taint & {RANK, LOCAL_RANK}:
        value.split = "unsure"
    elif operator in (ast.IsNot, ast.NotEq) and const is None and left.role == "sampler":
        value.split = "distributed"


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
        loader = drawn_from(over)
        if loader is not None:
            drawn.append(loader)
        bind(walk, generator.target, element(walk, generator.iter, over), inner)
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
    bind(walk, node.target, value, scope)
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


# Loops -----------------------------------------------------------------------------------------------------------


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
        return walk.make(node, items=parts, taint=spread(items))
    return branches.join_all(walk, list(reversed(items)))


def differs(loader: Value) -> bool:
    """Say whether a loader surely gives ranks different batches."""
    sampler = loader.argument("sampler") or loader.argument("batch_sampler")
    if sampler is not None and sampler.is_a("sampler"):
        return True
    shuffle = loader.argument("shuffle")
    return "prepared" in loader.attrs or (shuffle is not None and shuffle.const is True)


# Binding ---------------------------------------------------------------------------------------------------------


def bind(walk: "Walk", target: ast.AST, value: Value, scope: Scope) -> None:
    """Assign to a name, an attribute, an item or several of them."""
    if isinstance(target, ast.Name):
        _bind_name(walk, target.id, value, scope)
    elif isinstance(target, ast.Attribute):
        owner = evaluate(walk, target.value, scope)
        walk.emit("assign", target.attr, target, value, receiver=owner)
        tell(value, target.attr)
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
    tell(value, name)
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
    owner, key = evaluate(walk, target.value, scope), evaluate(walk, target.slice, scope)
    name = f"{owner.name}.{key.const}" if owner.name == "os.environ" and key.known else "[]"
    walk.emit("assign", name, target, value, receiver=owner, args=(key,))
    if owner.role in WRAPPED or owner.role == "model":
        return
    if key.known and owner.name != "os.environ":
        _store(walk, owner, f"[{key.const}]", value, scope)
    owner.taint |= value.taint - {REDUCED}


def read(walk: "Walk", target: ast.AST, scope: Scope) -> Value:
    return evaluate(walk, target if isinstance(target, ast.expr) else None, scope)
