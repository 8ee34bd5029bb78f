"""What a dump of NCCL's own graph changes."""

from itertools import combinations

from msgspec.structs import replace

from advisor.rules.fabric import collectives_of, ring_bandwidth
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Link, Machine, NcclGraph
from advisor.rules.transport import dumped_ring_speed


def box(gpus: int, channels: int, speed: float, kind: str = "NVL") -> Machine:
    """Return H100 on NVSwitch, with the rings that NCCL laid over all of them."""
    members = tuple(Gpu(id=f"GPU{i}", index=i, name="NVIDIA H100 80GB HBM3") for i in range(gpus))
    links = tuple(Link(a=a.id, b=b.id, code="NV18", kind="nvlink") for a, b in combinations(members, 2))
    ring = NcclGraph(
        id=0,
        pattern=4,
        channels=(tuple(range(gpus)),) * channels,
        bandwidth_intra=speed,
        bandwidth_inter=speed,
        type_intra=kind,
        type_inter="PIX",
    )
    return with_link_bandwidths(Machine(gpus=members, links=links, nccl_graphs=(ring,)))


def names(machine: Machine) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in machine.gpus)


def test_a_ring_runs_as_fast_as_nccls_own_channels_together() -> None:
    whole, degraded = box(8, 12, 30e9), box(8, 12, 20e9)
    assert ring_bandwidth(whole, names(whole)) == 360e9
    assert ring_bandwidth(degraded, names(degraded)) == 240e9
    slow, fast = (collectives_of(each, names(each))["all_gather"].bus_bandwidth for each in (degraded, whole))
    assert slow < fast


def test_without_a_fault_the_dump_says_what_the_data_sheet_does() -> None:
    for gpus in (2, 8):
        dumped = box(gpus, 12, 30e9)
        told = ring_bandwidth(replace(dumped, nccl_graphs=()), names(dumped))
        assert abs(ring_bandwidth(dumped, names(dumped)) / told - 1) < 0.01


def test_a_dump_of_other_gpus_or_of_pcie_or_with_peer_to_peer_off_says_nothing() -> None:
    eight = box(8, 12, 30e9)
    assert dumped_ring_speed(eight, names(eight)[:4]) is None
    assert dumped_ring_speed(replace(eight, environment={"NCCL_P2P_DISABLE": "1"}), names(eight)) is None
    over_pcie = box(2, 1, 12e9, kind="PHB")
    assert dumped_ring_speed(over_pcie, names(over_pcie)) is None
