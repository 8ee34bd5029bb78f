"""Machines and jobs that the tests of the rules share."""

import itertools
from collections.abc import Callable

import pytest

from advisor.rules.hardware import gpu_model
from advisor.rules.job import Job, assume_architecture
from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic

Code = Callable[[int, int], str]


def build_machine(gpus: int, name: str, code: Code | str, *, nodes: int = 1, host_memory: int | None = None) -> Machine:
    """Build a host of equal GPUs; `code` says what stands in the matrix between GPU a and GPU b."""
    model = gpu_model(name)
    assert model is not None
    members = tuple(
        Gpu(id=f"GPU{i}", index=i, name=model.name, memory=model.memory, compute_capability=model.compute_capability)
        for i in range(gpus)
    )
    links = []
    for a, b in itertools.combinations(members, 2):
        text = code if isinstance(code, str) else code(a.index, b.index)
        kind = kind_of_code(text)
        assert kind is not None
        links.append(Link(a=a.id, b=b.id, code=text, kind=kind))
    nics = tuple(Nic(id=f"NIC{i}", kind="infiniband", bandwidth=5e10) for i in range(gpus if nodes > 1 else 0))
    host = Host(cpus=96, memory_available=host_memory)
    return with_link_bandwidths(
        Machine(gpus=members, links=tuple(links), nics=nics, nodes=nodes, host=host, source="a test")
    )


def build_job(params: float, global_batch: int = 128, **fields: object) -> Job:
    """Build a job of the usual shape for that many parameters."""
    architecture, seq = assume_architecture(params)
    given = {"trainable_params": int(params), "seq": seq} | fields
    return Job(params=int(params), architecture=architecture, global_batch=global_batch, **given)  # type: ignore[arg-type]


@pytest.fixture
def a10g_server() -> Machine:
    return build_machine(4, "a10g", "PHB")


@pytest.fixture
def nvswitch_server() -> Machine:
    return build_machine(8, "h100", "NV18")


@pytest.fixture
def one_bridged_pair() -> Machine:
    """Four 3090, of which two have an NVLink bridge; the rest see each other across sockets."""
    return build_machine(4, "3090", lambda a, b: "NV4" if (a, b) == (0, 1) else "SYS")


@pytest.fixture
def machine() -> Callable[..., Machine]:
    return build_machine


@pytest.fixture
def job() -> Callable[..., Job]:
    return build_job
