"""What `advisor probe` says of links of which little is known."""

from msgspec.structs import replace

from advisor.report.console import render
from advisor.report.machine import machine_report
from advisor.rules.fabric import fabric_of
from advisor.rules.machine import Gpu, Machine, PeerAccess


def test_gpus_whose_links_are_unknown_get_no_islands_and_no_ring() -> None:
    machine = Machine(gpus=tuple(Gpu(id=f"GPU{i}", index=i) for i in range(3)), source="p2p.txt")
    page = shown(machine)
    assert "links unknown" in page
    assert not {"islands", "ring", "What the links give"} & {line.strip().split("  ")[0] for line in page.splitlines()}


def test_what_the_driver_answers_about_peer_access_is_told_once_for_equal_answers() -> None:
    pairs = (("GPU0", "GPU1", "OK"), ("GPU0", "GPU2", "CNS"), ("GPU1", "GPU2", "CNS"))
    access = tuple(
        PeerAccess(a=a, b=b, capability=capability, status=status)
        for capability in ("read", "write")
        for a, b, status in pairs
    )
    machine = Machine(gpus=tuple(Gpu(id=f"GPU{i}", index=i) for i in range(3)), peer_access=access, source="p2p.txt")
    page = shown(machine)
    assert "read, write between GPU0-GPU1: OK\n" in page
    assert "read, write between GPU0-GPU2, GPU1-GPU2: the chipset does not support it\n" in page
    alike = replace(machine, peer_access=tuple(replace(one, status="NS") for one in access))
    assert "read, write between all GPUs: not supported\n" in shown(alike)


def shown(machine: Machine) -> str:
    return render(machine_report(machine, fabric_of(machine), again="advisor probe"), width=100, colour=False)
