"""Where a script wraps its model for several ranks, and what it does to the model before and after."""

from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.known_names import FSDP2
from advisor.rules.source.source import Source
from advisor.rules.source.value import LOCAL_RANK, RANK, Class, Event, Value

PARAMETERS = ("parameters", "named_parameters", "parameter")


class Wrap(NamedTuple):
    event: Event
    role: str  # ddp, fsdp, fsdp2
    core: Value  # the model inside

    @property
    def at(self) -> int:
        return self.event.index

    def says(self, word: str) -> object:
        """Return a constant that the call is given; None where it is not, or no constant."""
        given = self.event.words.get(word)
        return given.const if given is not None and given.known else None


def wraps(source: Source, *roles: str) -> Iterator[Wrap]:
    """Yield the calls that wrap a model as one of the roles, the model itself and not a part of it."""
    for event in source.wraps:
        target = event.argument("module", 0)
        role = "fsdp2" if event.name == FSDP2 else event.value.role
        if role in roles and not event.alone and target is not None and target.role != "layer":
            yield Wrap(event, role, target.core)


MODELS = ("model", "lightning_module", "ddp", "fsdp", "fsdp2", "dp", "compiled")


def roots(value: Value | None) -> list[Value]:
    """Return the models that a layer, a parameter or a list of parameters belongs to, the innermost first."""
    found: list[Value] = []
    for _ in range(12):
        if value is None:
            break
        if value.role in MODELS:
            value = value.core
            found.append(value)
            value = value.owner
        else:
            value = (value.inner or value.owner) if value.role in PARAMETERS else value.owner
    return found


def owners(value: Value | None, depth: int = 0) -> Iterator[Value]:
    """Yield the models whose parameters a value holds: a list, a filter, groups of parameters."""
    if value is None or depth > 4:
        return
    if value.role in (*PARAMETERS, "layer"):
        yield from roots(value)
    for part in (*(value.items or ()), *value.options):
        yield from owners(part, depth + 1)


def outer_owners(value: Value | None, depth: int = 0) -> Iterator[Value]:
    """Yield what `.parameters()` was called on, wrappers included."""
    if value is None or depth > 4:
        return
    if value.role in ("parameters", "named_parameters", "parameter") and value.inner is not None:
        yield value.inner
    for part in (*(value.items or ()), *value.options):
        yield from outer_owners(part, depth + 1)


def moved_to_gpu(event: Event) -> bool:
    """Say whether a `.to(...)` or `.cuda()` surely puts the whole model on a GPU."""
    if event.kind != "call" or event.receiver is None or not event.name.endswith((".to", ".cuda")):
        return False
    if event.receiver.role not in ("model", "compiled"):
        return False
    device = event.argument("device", 0)
    if event.name.endswith(".cuda"):
        return True
    return device is not None and on_gpu(device)


def made_here(model: Value) -> bool:
    """Say whether the script itself builds the model, on the CPU as layers are unless told."""
    built = isinstance(model.code, Class) or model.name.startswith("torch.nn.")
    return built and not any(word in model.words for word in ("device", "device_map"))


def on_gpu(device: Value) -> bool:
    if any(isinstance(option.const, str) and option.const.startswith("cuda") for option in (device, *device.options)):
        return True
    if device.role == "device":
        first = device.argument("device", 0) or device.argument("type", 0)
        return first is not None and on_gpu(first)
    if device.role == "text":
        return device.name.startswith("cuda")
    return device.role == "own_device" or bool(device.taint & {RANK, LOCAL_RANK})
