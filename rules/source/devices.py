"""Where a script says which GPU it uses."""

from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.known_names import FSDP2
from advisor.rules.source.source import Source
from advisor.rules.source.value import LOCAL_RANK, RANK, Event, Value

CHOOSE = (
    "torch.cuda.set_device",
    "torch.cuda.device",
    "torch.accelerator.set_device_index",
    "torch.distributed.init_device_mesh",
)
PLACES = ("to", "cuda")
PLACED = ("torch.device", "<model>.to", "<model>.cuda")
BY_RANK = frozenset({RANK, LOCAL_RANK})


class Use(NamedTuple):
    at: tuple[str, int]
    fixed: bool  # by number
    chosen: bool = False  # by rank: each process has its own


def device_uses(source: Source) -> Iterator[Use]:
    """Yield each choice of a GPU that all ranks make: by number, by rank, or the current one."""
    used = False
    for event in source.events:
        if event.kind == "assign" and event.name == "os.environ.CUDA_VISIBLE_DEVICES":
            yield Use(_at(event, None), fixed=False, chosen=bool(event.value.taint & BY_RANK))
        if event.kind != "call" or event.alone or event.by_rank is not None:
            continue
        given = (*event.args, *event.words.values())
        chooses = event.name in CHOOSE and not (given and _number(given[0]) == 0)
        chooses = chooses or (event.name == FSDP2 and not used)  # its mesh sets the device where CUDA is not used yet
        placed = event.name in PLACED and any(value.taint & BY_RANK for value in given)
        if chooses or placed:
            yield Use(_at(event, None), fixed=False, chosen=True)
        use = _use(event)
        if use is not None:
            used = True
            yield use


def first_gpu(source: Source) -> tuple[str, int] | None:
    """Return the first line that names GPU 0, or the current GPU; None where ranks choose theirs."""
    uses = list(device_uses(source))
    if any(use.chosen for use in uses):
        return None
    return min((use.at for use in uses), default=None)


def _use(event: Event) -> Use | None:
    method = event.name.rpartition(".")[2]
    placed = event.receiver is not None and event.name.startswith("<") and method in PLACES
    if event.name in CHOOSE[:1] and _number(event.argument("device", 0)) == 0:
        return Use(_at(event, None), fixed=True)
    if event.name == "torch.device":
        kind, index = event.argument("device", 0) or event.argument("type", 0), event.argument("index", 1)
        if index is not None and (kind is None or not _is_cuda(kind)):
            return None
        if kind is not None and kind.const == "cuda":
            return Use(_at(event, None), _number(index) is not None) if index is None or index.known else None
        return _named(event, kind)
    devices = event.words.get("device_ids")
    if devices is not None and devices.items is not None and [_number(item) for item in devices.items] == [0]:
        return Use(_at(event, None), fixed=True)
    if placed and method == "cuda":
        index = event.argument("device", 0)
        if index is None:
            return Use(_at(event, None), fixed=False) if event.receiver and event.receiver.is_a("model") else None
        return Use(_at(event, None), fixed=True) if _number(index) is not None else _named(event, index)
    if placed:
        return _named(event, event.argument("device", 0))
    return _named(event, event.words.get("map_location") or event.words.get("device"))


def _named(event: Event, device: Value | None) -> Use | None:
    """Read a name such as "cuda:0", where it is written."""
    named = [d for d in (device, *device.options) if _is_cuda(d)] if device is not None else []
    if not named:
        return _of_device(event, device)
    device = named[0]
    fixed = ":" in device.const and device.const[-1:].isdigit()
    if not fixed and not (event.receiver is not None and event.receiver.is_a("model")):
        return None
    return Use(_at(event, device), fixed)


def _is_cuda(device: Value) -> bool:
    return isinstance(device.const, str) and device.const.startswith("cuda")


def _of_device(event: Event, device: Value | None) -> Use | None:
    """A model that is put on torch.device("cuda")."""
    if device is None or device.role != "device" or event.receiver is None or not event.receiver.is_a("model"):
        return None
    kind = device.argument("device", 0)
    plain = (
        kind is not None
        and "cuda" in (kind.const, *(o.const for o in kind.options))
        and len(device.args) == 1
        and not device.words
    )
    return Use(_at(event, None), fixed=False) if plain else None


def _number(value: Value | None) -> int | None:
    known = value is not None and isinstance(value.const, int) and not isinstance(value.const, bool)
    return value.const if known and value is not None else None


def _at(event: Event, value: Value | None) -> tuple[str, int]:
    return (value.file, value.line) if value is not None and value.line else (event.file, event.line)
