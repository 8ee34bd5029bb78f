"""The layers of a model of the script's own: which are defined, which are used."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.source import Source
from advisor.rules.source.value import Class, Event, Value

# Ways to reach layers without naming them.
GENERIC = ("children", "modules", "named_children", "named_modules", "_modules", "__dict__", "get_submodule", "getattr")
WITHOUT_PARAMETERS = frozenset(
    (
        *("ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "Dropout", "Dropout2d", "Identity"),
        *("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "Flatten", "Upsample", "LeakyReLU", "ELU", "Hardswish"),
        *("MaxPool1d", "AvgPool1d", "AdaptiveAvgPool1d", "Unflatten", "ReLU6", "Mish", "Softplus", "ZeroPad2d"),
        *("InstanceNorm2d", "InstanceNorm1d", "PixelShuffle", "Fold", "Unfold", "ConstantPad1d", "CosineSimilarity"),
    )
)


class Layer(NamedTuple):
    name: str
    file: str
    line: int


def unused_layers(source: Source, model: Value) -> Iterator[Layer]:
    """Yield layers with parameters that the `__init__` of a model, or of a part of it, sets and nothing names again."""
    for cls in _classes(model):
        named = _names(source)
        if any(word in _words(cls) for word in GENERIC) or not _has_forward(cls):
            continue
        for layer in _defined(source, cls):
            if named.count(layer.name) <= _times_set(cls, layer.name):
                yield layer


BUFFERED = ("torch.nn.BatchNorm", "torch.nn.SyncBatchNorm", "torch.nn.InstanceNorm")


def has_buffers(source: Source, model: Value) -> bool | None:
    """Say whether a model has buffers, which DDP broadcasts; None where its layers are not known."""
    classes = _classes(model)
    if not classes and not model.name.startswith("torch.nn."):
        return None
    registered = [event for event in source.events if event.name.endswith(".register_buffer")]
    if registered:
        return any(not _conditional(event) for event in registered)  # those of a fallback may not be there
    layers = [event for event in source.events if event.kind == "call" and event.name.startswith(BUFFERED)]
    if layers:
        return True
    known = all(part.name.startswith("torch.nn.") or isinstance(part.code, Class) for part in _parts(model))
    return False if known else None


def _conditional(event: Event) -> bool:
    return any(guard.file == event.file and not guard.is_main for guard in event.guards)


def _parts(model: Value) -> list[Value]:
    """Return a model and the models that it is made of."""
    found: list[Value] = []
    waiting = [model]
    while waiting and len(found) < 200:
        value = waiting.pop(0)
        if value not in found:
            found.append(value)
            held = (*value.attrs.values(), *value.args, *(value.items or ()))
            waiting += [part for part in held if part.role == "model"]
    return found


def _classes(model: Value) -> list[Class]:
    """Return the classes of a model and of the parts that it holds."""
    found = (part.code for part in _parts(model))
    return list(dict.fromkeys(code for code in found if isinstance(code, Class)))


def _defined(source: Source, cls: Class) -> Iterator[Layer]:
    """Yield the layers that a class makes itself in `__init__`, unconditionally."""
    for node in cls.node.body:
        if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
            continue
        for statement in node.body:
            target = next(iter(_targets(statement)), None)
            if isinstance(target, ast.Attribute) and _made(source, cls, statement):
                yield Layer(target.attr, cls.module.path, target.lineno)


def _made(source: Source, cls: Class, statement: ast.stmt) -> bool:
    """Say whether an assignment makes a layer of torch with parameters."""
    made = [event for event in _assigned(source, cls) if event.node in _targets(statement)]
    return any(
        event.value.role == "model"
        and event.value.name.startswith("torch.nn.")
        and event.value.name.rpartition(".")[2] not in WITHOUT_PARAMETERS
        and not _empty(event.value)
        for event in made
    )


def _empty(value: Value) -> bool:
    """Say whether a container may hold no parameters."""
    container = value.name.rpartition(".")[2] in ("Sequential", "ModuleList", "ModuleDict", "ParameterList")
    inside = (*value.args, *(item for arg in value.args for item in (arg.items or ())))
    with_parameters = [v for v in inside if v.role == "model" and v.name.rpartition(".")[2] not in WITHOUT_PARAMETERS]
    return container and not with_parameters


def _assigned(source: Source, cls: Class) -> Iterator[Event]:
    return (e for e in source.events if e.kind == "assign" and e.file == cls.module.path and e.receiver is not None)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.AnnAssign):
        return [statement.target]
    return statement.targets if isinstance(statement, ast.Assign) else []


def _names(source: Source) -> list[str]:
    """Return every attribute, keyword and text of the script: what may name a layer."""
    found: list[str] = []
    for module in source.modules:
        for node in module.nodes:
            if isinstance(node, ast.Attribute):
                found.append(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.extend(node.value.split("."))
    return found


def _times_set(cls: Class, name: str) -> int:
    """Return how often a class assigns an attribute of `self`."""
    nodes = (node for node in ast.walk(cls.node) if isinstance(node, ast.Attribute))
    return sum(isinstance(node.ctx, ast.Store) and node.attr == name for node in nodes)


def _words(cls: Class) -> set[str]:
    words: set[str] = set()
    for own in cls.lineage():
        for node in ast.walk(own.node):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if isinstance(name, str):
                words.add(name)
    return words


def _has_forward(cls: Class) -> bool:
    return cls.find("forward") is not None
