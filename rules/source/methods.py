"""What built-in functions, functions of libraries and methods of known objects return and change."""

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.rules.source import expressions
from advisor.rules.source.value import DATA, LONE, NOTHING, REDUCED, UNKNOWN, WRAPPED, Class, Function, Given, Value

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

Maker = Callable[["Walk", ast.AST, tuple[Value, ...], dict[str, Value]], Value]
STEPS = 250_000  # expressions that are looked at; after that, calls are no longer followed

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


# Built-in functions ----------------------------------------------------------------------------------------------


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
    loader = expressions.drawn_from(args[0])
    drawn = expressions.element(walk, node, args[0])
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


# Functions of libraries --------------------------------------------------------------------------------------------


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


# Methods -----------------------------------------------------------------------------------------------------------


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
