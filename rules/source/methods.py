"""What methods of known objects return."""

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.rules.source import expressions
from advisor.rules.source.value import NOTHING, REDUCED, WRAPPED, Class, Function, Given, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

Maker = Callable[["Walk", ast.AST, tuple[Value, ...], dict[str, Value]], Value]

# Methods of models and tensors that return the object itself.
SAME_OBJECT = frozenset(
    (
        *("to", "cuda", "cpu", "xpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_"),
        *("detach", "contiguous", "data", "view", "squeeze", "share_memory", "apply", "compile", "to_empty"),
    )
)
PLAIN = ("", "tensor", "batch", "clock", "object", "dict", "text", "checkpoint", "parameter")
MODELS = ("model", "compiled", "lightning_module", *WRAPPED)


def method(walk: "Walk", receiver: Value, name: str, given: Given) -> Value:
    """Return what a method of an object that is not the script's own gives back."""
    node, _, args, words = given
    maker = METHODS.get((receiver.role, name))
    if maker is not None:
        return maker(walk, node, (receiver, *args), words)
    if receiver.is_a(*MODELS) and receiver.role != "dict":
        found = _of_model(walk, receiver, name, given)
        if found is not None:
            return found
    if name in ("parameters", "named_parameters") and not receiver.role:
        receiver.role = "model"
        return _of_model(walk, receiver, name, given) or walk.make(node)
    if name in ("append", "extend", "add", "update", "insert", "setdefault"):
        taint = expressions.spread([*args, *words.values()])
        receiver.taint |= taint
        if name in ("append", "add") and args and receiver.items is not None and len(receiver.items) < 50:
            receiver.items.append(args[-1])
        return walk.make(node, taint=taint)
    if name in SAME_OBJECT and receiver.role in (*PLAIN, "layer", "parameter"):
        return receiver
    if name in expressions.SHAPE:
        return walk.make(node, owner=receiver)
    if name == "full_tensor":
        return walk.make(node, "tensor", taint=frozenset({REDUCED}))
    if name in ("format", "join") and isinstance(receiver.const, str):
        return walk.make(node, "text", taint=expressions.spread(args), items=list(args))
    if receiver.role in ("layer", "layers", "named_layers"):
        return walk.make(node, _of_layer(name), owner=receiver, inner=receiver)
    if receiver.role in PLAIN:
        role = "tensor" if receiver.role in ("tensor", "batch") and name not in ("item", "tolist") else ""
        return walk.make(node, role, taint=expressions.spread([receiver, *args]), owner=receiver, inner=receiver)
    return walk.make(node, owner=receiver)


def _of_layer(name: str) -> str:
    return {
        "parameters": "parameters",
        "named_parameters": "named_parameters",
        "modules": "layers",
        "children": "layers",
        "named_modules": "named_layers",
        "named_children": "named_layers",
    }.get(name, "")


def _of_model(walk: "Walk", model: Value, name: str, given: Given) -> Value | None:
    node, _, args, words = given
    if name in SAME_OBJECT:
        return model
    if name in ("no_sync", "join"):
        return walk.make(node, "context", name=name, inner=model)
    if name in ("state_dict", "get_state_dict"):
        return walk.make(node, "state", inner=model)
    if name in ("named_modules", "named_children"):
        return walk.make(node, "named_layers", inner=model, owner=model)
    role = _of_layer(name)
    if role:
        return walk.make(node, role, inner=model)
    if name in ("forward", "generate", "__call__"):
        return walk.make(node, "tensor", taint=expressions.spread([*args, *words.values()]))
    if name == "load_state_dict" or name.startswith("set_"):
        return walk.make(node)
    return walk.make(node, taint=expressions.spread([*args, *words.values()]), owner=model)


def holds(role: str, args: tuple[Value, ...], words: dict[str, Value]) -> Value | None:
    """Return what a wrapper, a loader, an optimizer or a scheduler is made of."""
    words_of = {"loader": "dataset", "optimizer": "params", "scheduler": "optimizer", "sampler": "dataset"}
    inner = words.get(words_of.get(role, "module")) or (args[0] if args else None)
    if inner is not None and role in (*WRAPPED, "compiled") and not inner.role and inner.code is None:
        inner.role = "model"
    return inner if role in (*WRAPPED, "compiled", *words_of) else None


def _prepare(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """accelerator.prepare and what Fabric calls so: each object comes back in its place, made for this rank."""
    owner, *given = args
    made = [_prepared(walk, node, owner, value) for value in (*given, *words.values())]
    return made[0] if len(made) == 1 else walk.make(node, items=made)


def _prepared(walk: "Walk", node: ast.AST, owner: Value, value: Value) -> Value:
    if value.role == "loader" or (not value.role and value.code is None and "load" in value.name):
        return value.changed(role="loader", attrs=value.attrs | {"prepared": owner})
    if value.role in MODELS or isinstance(value.code, Class):
        return walk.make(node, "prepared", inner=value, owner=owner)
    return value


def _reduced(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return walk.make(node, "tensor", taint=frozenset({REDUCED}))


def _unwrap(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    return args[1].core if len(args) > 1 else walk.make(node)


def _scaled(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    inner = args[1] if len(args) > 1 else None
    return walk.make(node, "tensor", name="scaled", taint=inner.taint if inner else NOTHING, inner=inner, owner=args[0])


def _fit(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """Trainer.fit: the methods of the script's own module are called by Lightning."""
    from advisor.rules.source import calls

    for value in (*args[1:], *words.values()):
        if isinstance(value.code, Class) and value.role in ("lightning_module", "lightning_data"):
            for cls in value.code.lineage():
                for member in cls.names.values():
                    if isinstance(member.code, Function) and member.name != "__init__" and member.role == "function":
                        calls.follow(walk, node, member, (value,), {})
    return walk.make(node)


def _context(name: str) -> Maker:
    def make(walk: "Walk", node: ast.AST, args: tuple[Value, ...], words: dict[str, Value]) -> Value:
        return walk.make(node, "context", name=name, inner=args[1] if len(args) > 1 else None)

    return make


METHODS: dict[tuple[str, str], Maker] = {
    ("accelerator", "prepare"): _prepare,
    ("accelerator", "prepare_model"): _prepare,
    ("accelerator", "prepare_data_loader"): _prepare,
    ("fabric", "setup"): _prepare,
    ("fabric", "setup_module"): _prepare,
    ("fabric", "setup_dataloaders"): _prepare,
    ("accelerator", "gather"): _reduced,
    ("accelerator", "gather_for_metrics"): _reduced,
    ("accelerator", "reduce"): _reduced,
    ("fabric", "all_reduce"): _reduced,
    ("fabric", "all_gather"): _reduced,
    ("fabric", "broadcast"): _reduced,
    ("accelerator", "unwrap_model"): _unwrap,
    ("accelerator", "accumulate"): _context("accumulate"),
    ("accelerator", "no_sync"): _context("no_sync"),
    ("fabric", "no_backward_sync"): _context("no_sync"),
    ("scaler", "scale"): _scaled,
    ("sharded_scaler", "scale"): _scaled,
    ("trainer", "fit"): _fit,
}
