"""Which machine measurements are of: all that decides what they say. Another identity is another machine."""

import hashlib
from collections.abc import Iterator

import msgspec

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.machine import Gpu, Machine, Value


class Device(Value, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    uuid: str | None = None
    memory: int | None = None  # bytes


class Identity(Value, frozen=True, kw_only=True):
    host: str | None = None  # its name, where no UUID of a GPU tells machines apart
    cpu: str | None = None  # model name
    cpus: int | None = None  # logical processors that may be used
    gpus: tuple[Device, ...] = ()  # the visible ones
    links: tuple[tuple[str, str, str], ...] = ()  # two devices and the code between them
    driver: str | None = None
    cuda: str | None = None  # that torch was built for
    nccl: str | None = None
    torch: str | None = None
    nccl_variables: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Return a name for a file."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


def identity_of(machine: Machine, host: str) -> Identity:
    """Return what tells this machine from others; CPU processes that stand in for GPUs are none of it."""
    gpus = [gpu for gpu in machine.gpus if not is_cpu(gpu)]
    ids = {gpu.id for gpu in gpus} | {nic.id for nic in machine.nics}
    software = machine.software
    return Identity(
        host=None if gpus and all(gpu.uuid for gpu in gpus) else host,
        cpu=machine.host.cpu,
        cpus=machine.host.cpus,
        gpus=tuple(map(_device, gpus)),
        links=tuple((link.a, link.b, link.code) for link in machine.links if {link.a, link.b} <= ids),
        driver=software.driver,
        cuda=software.torch_cuda,
        nccl=software.nccl,
        torch=software.torch,
        nccl_variables={n: value for n, value in sorted(machine.environment.items()) if n.startswith("NCCL_")},
    )


def same_host(one: Identity, other: Identity) -> bool:
    """Say whether both are of one host, whatever has changed on it since."""
    uuids = {gpu.uuid for gpu in one.gpus if gpu.uuid} & {gpu.uuid for gpu in other.gpus if gpu.uuid}
    return bool(uuids) or (one.host is not None and one.host == other.host)


def changes(old: Identity, new: Identity) -> Iterator[str]:
    """Say which fields differ: `driver 570.86 -> 575.51`."""
    for name in Identity.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name == "nccl_variables":
            for variable in sorted(before.keys() | after.keys()):
                if before.get(variable) != after.get(variable):
                    yield f"{variable} {_value(before.get(variable))} -> {_value(after.get(variable))}"
        elif name == "gpus":
            yield f"visible GPUs {_gpus(before)} -> {_gpus(after)}"
        elif name == "links":
            lost, found = sorted(set(before) - set(after)), sorted(set(after) - set(before))
            yield f"links {_links(lost)} -> {_links(found)}"
        else:
            yield f"{name} {_value(before)} -> {_value(after)}"


def _device(gpu: Gpu) -> Device:
    return Device(id=gpu.id, name=gpu.name, uuid=gpu.uuid, memory=gpu.memory)


def _value(value: object) -> str:
    return "none" if value is None else str(value)


def _gpus(gpus: tuple[Device, ...]) -> str:
    return ", ".join(f"{gpu.id} ({gpu.uuid or gpu.name or 'unnamed'})" for gpu in gpus) or "none"


def _links(links: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{a}-{b} {code}" for a, b, code in links) or "none"
