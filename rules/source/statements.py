"""What each kind of statement does to the walk."""

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.rules.source import binding, branches, calls, conditions, expressions
from advisor.rules.source.known_names import FIRST_ONLY, LOCAL_ONLY, canonical
from advisor.rules.source.roles import role_of_base
from advisor.rules.source.value import LOCAL_RANK, RANK, Class, Function, Guard, Loop, Scope, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
LEAVING_CALLS = ("sys.exit", "exit", "quit", "os._exit")


def _expression(walk: "Walk", node: ast.Expr, scope: Scope) -> None:
    walk.value_of(node.value, scope)


def _assign(walk: "Walk", node: ast.Assign, scope: Scope) -> None:
    value = walk.value_of(node.value, scope)
    for target in node.targets:
        binding.bind(walk, target, value, scope)


def _annotated(walk: "Walk", node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None:
        binding.bind(walk, node.target, walk.value_of(node.value, scope), scope)


def _augmented(walk: "Walk", node: ast.AugAssign, scope: Scope) -> None:
    left = binding.read(walk, node.target, scope)
    right = walk.value_of(node.value, scope)
    if isinstance(node.target, ast.Attribute) and not left.role and not left.known:  # p.grad /= n, in place
        left.taint = expressions.spread((left, right))
        walk.emit("assign", node.target.attr, node.target, left, receiver=left.owner)
        return
    binding.bind(walk, node.target, expressions.computed(walk, node, node.op, left, right), scope)


def _delete(walk: "Walk", node: ast.Delete, scope: Scope) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            scope.names.pop(target.id, None)


def _import(walk: "Walk", node: ast.Import, scope: Scope) -> None:
    for alias in node.names:
        own = walk.modules.get(alias.name)
        if own is not None:
            walk.run(own)
            if alias.asname or "." not in alias.name:
                scope.names[alias.asname or alias.name] = walk.make(node, "module", attrs=own.globals)
                continue
        name = alias.name if alias.asname else alias.name.split(".")[0]
        scope.names[alias.asname or name] = walk.make(node, "module", name=name)


def _import_from(walk: "Walk", node: ast.ImportFrom, scope: Scope) -> None:
    base = node.module or ""
    if node.level:
        package = scope.module.name.split(".")[: -node.level] if scope.module.name else []
        base = ".".join([*package, *filter(None, [node.module])])
    own = walk.modules.get(base)
    if own is not None:
        walk.run(own)
    for alias in node.names:
        inner = walk.modules.get(f"{base}.{alias.name}" if base else alias.name) if own or node.level else None
        if alias.name == "*":
            scope.names.update(own.globals if own else {})
        elif own is not None and alias.name in own.globals:
            scope.names[alias.asname or alias.name] = own.globals[alias.name]
        elif inner is not None:
            walk.run(inner)
            scope.names[alias.asname or alias.name] = walk.make(node, "module", attrs=inner.globals)
        else:
            value = walk.make(node, name=canonical(f"{base}.{alias.name}"))
            if not base.startswith("torch"):
                conditions.tell(value, alias.name)
            scope.names[alias.asname or alias.name] = value


def _function(walk: "Walk", node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
    scope.names[node.name] = define(walk, node, scope)


def define(
    walk: "Walk", node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, owner: Class | None = None
) -> Value:
    """Make the value of a function, with its decorators applied."""
    value = walk.make(node, "function", name=node.name, code=Function(node, scope.module, scope, owner))
    for decorator in reversed(node.decorator_list):
        maker = walk.value_of(decorator, scope)
        name = maker.name
        if isinstance(maker.code, Function):
            result = calls.follow(walk, decorator, maker, (value,), {})
            value = result if result.code is not None else value
        elif FIRST_ONLY.search(name) or LOCAL_ONLY.search(name):
            local = LOCAL_ONLY.search(name) is not None
            test = walk.make(decorator, taint=frozenset({LOCAL_RANK if local else RANK}), split="first")
            value.options = (*value.options, test)  # calls.follow enters the function under it
        elif name in ("property", "functools.cached_property"):
            value.role = "property"
        elif name in ("staticmethod", "classmethod"):
            value.role = name
    return value


def _class(walk: "Walk", node: ast.ClassDef, scope: Scope) -> None:
    bases = [walk.value_of(base, scope) for base in node.bases]
    names: dict[str, Value] = {}
    cls = Class(node, scope.module, scope, bases, names)
    roles = [base.code.role if isinstance(base.code, Class) else role_of_base(base.name) for base in bases]
    cls.role = next(filter(None, roles), "")
    value = walk.make(node, "class", name=node.name, code=cls)
    scope.names[node.name] = value
    inner = Scope(names, scope.module, scope)
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = define(walk, statement, scope, cls)
        else:
            walk.block([statement], inner)


def _return(walk: "Walk", node: ast.Return, scope: Scope) -> None:
    value = walk.value_of(node.value, scope)
    scope.returned.append(branches.under_guards(value, walk.guards[scope.guards :]))
    _leave(walk, node, scope)


def _leave(walk: "Walk", node: ast.stmt, scope: Scope) -> None:
    own = walk.loops[scope.loops :]
    if own:
        left = own[0] if isinstance(node, ast.Return) else own[-1]
        walk.emit("leave", type(node).__name__.lower(), node, walk.make(node), left=left)


def _raise(walk: "Walk", node: ast.Raise, scope: Scope) -> None:
    walk.value_of(node.exc, scope)
    walk.emit("leave", "raise", node, walk.make(node))


def _if(walk: "Walk", node: ast.If, scope: Scope) -> None:
    test = walk.value_of(node.test, scope)
    if test.const is False and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    arms = ((node.body, walk.guard(node.test, test)), (node.orelse, walk.guard(node.test, test, negated=True)))
    start = dict(scope.names)
    ends: list[dict[str, Value]] = []
    for statements, guard in arms:
        scope.names.clear()
        scope.names.update(start)
        with walk.under(guard):
            walk.block(statements, scope)
        if not leaves(statements):
            ends.append(dict(scope.names))
    merged = branches.joined(walk, ends, test, start) if len(ends) == 2 else (ends or [start])[0]
    scope.names.clear()
    scope.names.update(merged)
    way = _way_out(node.body)
    if way and not leaves(node.orelse) and (way != "raise" or test.split in ("first", "others")):
        walk.guards = (*walk.guards, walk.guard(node.test, test, negated=True, rest=True))


def leaves(statements: Sequence[ast.stmt]) -> bool:
    return bool(_way_out(statements))


def _way_out(statements: Sequence[ast.stmt]) -> str:
    """Say how a block is always left before its end: "return", "raise", ...; "" where it is not."""
    if not statements:
        return ""
    last = statements[-1]
    if isinstance(last, LEAVES):
        return type(last).__name__.lower()
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        function = last.value.func
        name = f"{getattr(function.value, 'id', '')}.{function.attr}" if isinstance(function, ast.Attribute) else ""
        return "return" if (name or getattr(function, "id", "")) in LEAVING_CALLS else ""
    return ""


def _for(walk: "Walk", node: ast.For | ast.AsyncFor, scope: Scope) -> None:
    over = walk.value_of(node.iter, scope)
    source = binding.drawn_from(over)
    loop = Loop(node, walk.file, source or over)
    element = binding.element(walk, node.iter, over)

    def once() -> None:
        if source is not None:
            walk.emit("draw", "for", node, element, receiver=source)
        binding.bind(walk, node.target, element, scope)
        walk.block(node.body, scope)

    _loop(walk, loop, once, scope)
    walk.block(node.orelse, scope)


def _while(walk: "Walk", node: ast.While, scope: Scope) -> None:
    def once() -> None:
        test = walk.value_of(node.test, scope)
        if test.taint:
            with walk.under(walk.guard(node.test, test, negated=True)):
                walk.emit("leave", "while", node.test, test, left=walk.loops[-1])
        walk.block(node.body, scope)

    _loop(walk, Loop(node, walk.file, None), once, scope)


def _loop(walk: "Walk", loop: Loop, once: Any, scope: Scope) -> None:
    before = walk.loops
    walk.loops = (*before, loop)
    start = dict(scope.names)
    try:
        if not walk.silent:
            with walk.silently():
                once()
            for name, value in start.items():  # a loop may run no time
                scope.names[name] = branches.either(walk, value, scope.names.get(name, value))
        once()
    finally:
        walk.loops = before


def _with(walk: "Walk", node: ast.With | ast.AsyncWith, scope: Scope) -> None:
    before = walk.contexts
    for item in node.items:
        value = walk.value_of(item.context_expr, scope)
        walk.contexts = (*walk.contexts, value, *value.options)
        if item.optional_vars is not None:
            binding.bind(walk, item.optional_vars, value, scope)
    guards = walk.guards
    walk.block(node.body, scope)
    walk.guards = guards
    walk.contexts = before


def _try(walk: "Walk", node: ast.Try, scope: Scope) -> None:
    before = walk.tries
    walk.tries = (*before, node)
    walk.block(node.body, scope)
    walk.tries = before
    for handler in node.handlers:
        start = dict(scope.names)
        with walk.under(Guard(handler, walk.file, walk.make(handler), "", handler=True)):
            walk.block(handler.body, scope)
        for name, value in start.items():
            scope.names[name] = branches.either(walk, value, scope.names.get(name, value))
    walk.block(node.orelse, scope)
    walk.block(node.finalbody, scope)


def _global(walk: "Walk", node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
    scope.globals_used.update(node.names)


def _match(walk: "Walk", node: ast.Match, scope: Scope) -> None:
    subject = walk.value_of(node.subject, scope)
    for case in node.cases:
        with walk.under(walk.guard(case.pattern, walk.make(node, taint=subject.taint))):
            walk.block(case.body, scope)


def _assert(walk: "Walk", node: ast.Assert, scope: Scope) -> None:
    walk.value_of(node.test, scope)


STATEMENTS: dict[type[ast.stmt], Any] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Delete: _delete,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Return: _return,
    ast.Break: _leave,
    ast.Continue: _leave,
    ast.Raise: _raise,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Global: _global,
    ast.Nonlocal: _global,
    ast.Match: _match,
    ast.Assert: _assert,
}
