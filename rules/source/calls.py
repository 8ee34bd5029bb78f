"""What a call does: the script's own functions are followed, those of libraries looked up."""

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.rules.source import branches, conditions, expressions, methods
from advisor.rules.source.builtin_functions import BUILTINS
from advisor.rules.source.functions import FUNCTIONS
from advisor.rules.source.known_names import canonical
from advisor.rules.source.roles import role_of_call, role_of_name
from advisor.rules.source.value import Class, Function, Given, Guard, Scope, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

STEPS = 250_000  # expressions that are looked at; after that, calls are no longer followed
DEEPEST_CALLS = 12  # functions of the script's own within each other
MOST_WALKS = 10  # of one function, from different calls; then what it returned last is taken
SHORT = 6  # statements; such a function is followed more often
RANKS = ("rank", "local_rank", "world_size")
LAUNCHERS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
# Libraries whose functions return what differs between ranks as their arguments do.
SPREADING = ("torch.", "math.", "numpy.", "statistics.", "os.path.", "pathlib.", "open")
PLACES = ("device", "device_ids", "map_location", "dtype", "generator")  # arguments that say nothing about values
MODELS = ("model", "ddp", "fsdp", "fsdp2", "dp", "compiled", "prepared", "engine", "layer", "lightning_module")


def call(walk: "Walk", node: ast.Call, scope: Scope) -> Value:
    if isinstance(node.func, ast.Attribute):
        receiver = expressions.evaluate(walk, node.func.value, scope)
        callee = expressions.attribute(walk, node.func, receiver, node.func.attr)
    else:
        receiver, callee = None, expressions.evaluate(walk, node.func, scope)
    args = tuple(expressions.evaluate(walk, argument, scope) for argument in node.args)
    words: dict[str, Value] = {}
    for keyword in node.keywords:
        value = expressions.evaluate(walk, keyword.value, scope)
        if keyword.arg is not None:
            words[keyword.arg] = value
        elif value.role == "dict":
            words.update({key.strip("[]'"): item for key, item in value.attrs.items() if key.startswith("[")})
    if callee.role == "partial" and callee.inner is not None:
        args, words, callee = (*callee.args, *args), callee.words | words, callee.inner
    return apply(walk, callee, Given(node, receiver, args, words), scope)


def apply(walk: "Walk", callee: Value, given: Given, scope: Scope) -> Value:
    """Do what calling a value does, and say that it has happened."""
    node, receiver, args, words = given
    code = callee.code
    if isinstance(code, Function):
        _emit(walk, f"own.{callee.name}", callee, given)
        return follow(walk, node, callee, (*filter(None, [callee.owner]), *args), words)
    if isinstance(code, Class) and callee.role == "class":
        value = instance(walk, node, code, args, words)
        _emit(walk, f"own.{callee.name}", value, given)
        return value
    if callee.split or callee.role in RANKS:  # trainer.is_world_process_zero()
        _emit(walk, callee.name or "?", callee, given)
        return callee
    if callee.name == "super":
        return _super(walk, node, scope)
    if callee.name in ("functools.partial", "partial") and args:
        return walk.make(node, "partial", inner=args[0], args=args[1:], words=words)
    known = callee.role not in ("", "layer", "property")
    if receiver is not None and not known and receiver.role != "module" and (receiver.role or not callee.name):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        value = methods.method(walk, receiver, name, given)
        _emit(walk, f"<{receiver.role}>.{name}", value, given)
        return value
    if callee.role in MODELS or (isinstance(code, Class) and code.find("forward")):
        return forward(walk, node, callee, args, words)
    return _object(walk, callee, given) if callee.role else library(walk, callee, given)


def _emit(walk: "Walk", name: str, value: Value, given: Given) -> None:
    walk.emit("call", name, given.node, value, receiver=given.receiver, args=given.args, words=given.words)


def _object(walk: "Walk", callee: Value, given: Given) -> Value:
    """Call an object that is no model: a loss function, or one with `__call__`."""
    node, _, args, words = given
    member = callee.code.find("__call__") if isinstance(callee.code, Class) else None
    value = walk.make(node, "tensor", taint=expressions.spread([*args, *words.values()]), args=args, words=words)
    value.name, value.owner = f"<{callee.role}>()", callee
    _emit(walk, value.name, value, given._replace(receiver=callee))
    return follow(walk, node, member, (callee, *args), words) if member is not None else value


def library(walk: "Walk", callee: Value, given: Given) -> Value:
    """Call what a library gives, or what is not known."""
    node, _, args, words = given
    name = canonical(callee.name)
    maker = BUILTINS.get(name) or FUNCTIONS.get(name)
    if maker is not None:
        value = maker(walk, node, args, words)
        if name in FUNCTIONS:
            value.name = value.name or name
    else:
        role = role_of_call(name)
        value = walk.make(node, role, name=name or "?", args=args, words=words)
        if role == "tensor" or name.startswith(SPREADING):
            value.taint |= expressions.spread([*args, *(words[word] for word in words if word not in PLACES)])
        value.inner = methods.holds(role, args, words)
    _emit(walk, name or "?", value, given)
    functions = [passed for passed in (*args, *words.values()) if isinstance(passed.code, Function)]
    if name in LAUNCHERS:
        _launch(walk, node, args, words)
    elif functions and not value.role and not name.startswith(("torch.", "functools.")):
        passed = words.get("args")
        for function in functions:
            follow(walk, node, function, tuple((passed.items if passed is not None else None) or ()), {})
    return value


def _launch(walk: "Walk", node: ast.Call, args: tuple[Value, ...], words: dict[str, Value]) -> None:
    """Start a function once per process: its first argument is the process's number."""
    function = words.get("fn") or (args[0] if args else None)
    given = words.get("args") or (args[1] if len(args) > 1 else None)
    if function is not None and function.code is not None:
        rank = walk.make(node, "rank")
        follow(walk, node, function, (rank, *((given.items if given is not None else None) or ())), {})


def follow(walk: "Walk", node: ast.AST, callee: Value, args: tuple[Value, ...], words: Mapping[str, Value]) -> Value:
    """Walk a function of the script's own, and return what it returns."""
    function = callee.code
    assert isinstance(function, Function)
    body = function.node
    if callee.owner is not None and (not args or args[0] is not callee.owner):
        args = (callee.owner, *args)
    many = MOST_WALKS * (1 if isinstance(body, ast.Lambda) or len(body.body) > SHORT else 8)
    if body in walk.active or walk.walked.get(body, 0) >= many or len(walk.active) >= DEEPEST_CALLS:
        return walk.results.get(body) or walk.make(node)
    if walk.steps > STEPS:
        return walk.results.get(body) or walk.make(node)
    walk.seen.add(body)
    walk.walked[body] = walk.walked.get(body, 0) + (0 if walk.silent else 1)
    names = bound(walk, body, args, words, function.scope)
    inner = Scope(names, function.module, function.scope, guards=len(walk.guards), loops=len(walk.loops))
    outside = (walk.module_now, walk.calls, walk.guards)
    walk.module_now, walk.calls = function.module, (*walk.calls, node)
    walk.active.append(body)
    for test in callee.options:  # a decorator lets one rank in
        walk.guards = (*walk.guards, Guard(test.node or node, walk.file, test, test.split))
    try:
        if isinstance(body, ast.Lambda):
            result = expressions.evaluate(walk, body.body, inner)
        else:
            walk.block(body.body, inner)
            result = branches.join_all(walk, inner.returned) or walk.make(node, const=None)
    finally:
        walk.active.pop()
        walk.module_now, walk.calls, walk.guards = outside
    walk.results[body] = result
    return result


def bound(
    walk: "Walk",
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    args: Sequence[Value],
    words: Mapping[str, Value],
    scope: Scope | None,
) -> dict[str, Value]:
    """Bind the parameters of a function to what is passed, or to their defaults."""
    given = node.args
    parameters = [*given.posonlyargs, *given.args]
    names = {parameter.arg: value for parameter, value in zip(parameters, args, strict=False)}
    if given.vararg is not None:
        names[given.vararg.arg] = walk.make(node, items=list(args[len(parameters) :]))
    known = {parameter.arg for parameter in (*parameters, *given.kwonlyargs)}
    names.update({name: value for name, value in words.items() if name in known})
    if given.kwarg is not None:
        rest = {f"[{name}]": value for name, value in words.items() if name not in known}
        names[given.kwarg.arg] = walk.make(node, "dict", attrs=rest)
    defaults = dict(zip(reversed([p.arg for p in parameters]), reversed(given.defaults), strict=False))
    defaults |= {p.arg: d for p, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None}
    for parameter in (*parameters, *given.kwonlyargs):
        if parameter.arg not in names:
            default = defaults.get(parameter.arg)
            told = not walk.reached and role_of_name(parameter.arg)  # who calls it is not known, its name is
            if default is None or scope is None or told:
                names[parameter.arg] = walk.make(node)
            else:
                names[parameter.arg] = expressions.evaluate(walk, default, scope)
        conditions.tell(names[parameter.arg], parameter.arg)
    return names


def instance(walk: "Walk", node: ast.AST, cls: Class, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """Make an object of a class of the script's own: its `__init__` is followed."""
    value = walk.make(node, cls.role or "object", name=cls.node.name, code=cls, args=args, words=words)
    maker = cls.find("__init__")
    if maker is not None and isinstance(maker.code, Function):
        follow(walk, node, maker, (value, *args), words)
    else:  # a dataclass or a named tuple
        fields = [name for name in cls.names if not name.startswith("_")]
        value.attrs.update(dict(zip(fields, args, strict=False)) | words)
    return value


def forward(walk: "Walk", node: ast.AST, callee: Value, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """Call a model: what it returns differs between ranks as its input does."""
    walk.emit("call", f"<{callee.role}>()", node, callee, receiver=callee, args=args, words=words)
    taint = expressions.spread([*args, *words.values()])
    core = callee.core
    method = core.code.find("forward") if isinstance(core.code, Class) else None
    result = walk.make(node, "tensor", taint=taint, args=args, owner=callee, name=f"<{callee.role}>()")
    if method is not None and isinstance(method.code, Function):
        shown = follow(walk, node, method, (core, *args), words)
        result.taint |= shown.taint
        if shown.items:
            result.items = [item.changed(taint=item.taint | taint, role=item.role or "tensor") for item in shown.items]
        elif shown.role == "tensor" and shown.name.startswith(("torch.", "<loss_fn>")):
            return shown
    return result


def _super(walk: "Walk", node: ast.AST, scope: Scope) -> Value:
    """Return the object itself, seen as one of its base class."""
    inner: Scope | None = scope
    while inner is not None and "self" not in inner.names:
        inner = inner.outer
    owner = inner.names["self"] if inner is not None else None
    cls = owner.code if owner is not None else None
    if owner is None or not isinstance(cls, Class):
        return walk.make(node)
    bases = [base.code for base in cls.bases if isinstance(base.code, Class)]
    return owner.changed(code=bases[0] if bases else None, role=owner.role if bases else "base")
