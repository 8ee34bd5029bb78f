"""What `advisor probe` shows, for machines that differ as much as real ones do."""

import re

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from advisor.report.console import render
from advisor.report.machine import machine_headline, machine_report, machine_verdict
from advisor.rules.asymmetry import asymmetries
from advisor.rules.contention import nearest_nics, shared_links
from advisor.rules.fabric import Collective, Fabric, GroupCost, Ring
from advisor.rules.machine import Gpu, Host, Link, LinkKind, Machine, Nic, Pcie, Software, Unknown
from advisor.rules.plan import Finding
from advisor.rules.subsets import subsets_of
from advisor.rules.topology import island_levels

KINDS: dict[str, LinkKind] = {
    "NV": "nvlink",
    "PIX": "pcie-switch",
    "PXB": "pcie-switches",
    "PHB": "host-bridge",
    "NODE": "numa-node",
    "SYS": "inter-socket",
}
GB = 10**9


def links(matrix: str, speeds: dict[str, float]) -> tuple[Link, ...]:
    """Read a matrix of codes: a header of ids, then a row for each GPU."""
    header, *lines = matrix.strip().splitlines()
    columns, found = header.split(), {}
    for line in lines:
        row, *codes = line.split()
        for column, code in zip(columns, codes, strict=True):
            if row != column and (column, row) not in found:
                kind = KINDS[code.rstrip("0123456789")]
                source = "data sheet" if code in speeds and column.startswith("GPU") else None
                speed = speeds.get(code) if source else None
                found[row, column] = Link(
                    a=row, b=column, code=code, kind=kind, bandwidth=speed, bandwidth_source=source
                )
    return tuple(found.values())


DGX1 = """
     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 mlx5_0 mlx5_2 mlx5_1 mlx5_3
GPU0  X   NV1  NV1  NV2  NV2  SYS  SYS  SYS  PIX    SYS    PHB    SYS
GPU1 NV1   X   NV2  NV1  SYS  NV2  SYS  SYS  PIX    SYS    PHB    SYS
GPU2 NV1  NV2   X   NV2  SYS  SYS  NV1  SYS  PHB    SYS    PIX    SYS
GPU3 NV2  NV1  NV2   X   SYS  SYS  SYS  NV1  PHB    SYS    PIX    SYS
GPU4 NV2  SYS  SYS  SYS   X   NV1  NV1  NV2  SYS    PIX    SYS    PHB
GPU5 SYS  NV2  SYS  SYS  NV1   X   NV2  NV1  SYS    PIX    SYS    PHB
GPU6 SYS  SYS  NV1  SYS  NV1  NV2   X   NV2  SYS    PHB    SYS    PIX
GPU7 SYS  SYS  SYS  NV1  NV2  NV1  NV2   X   SYS    PHB    SYS    PIX
"""


def dgx1_v100() -> tuple[Machine, Fabric]:
    gpus = tuple(
        Gpu(
            id=f"GPU{i}",
            index=i,
            name="Tesla V100-SXM2-16GB",
            memory=16_945_512_448,
            compute_capability="7.0",
            pcie=Pcie(generation=1, width=16, generation_max=3, width_max=16),
            cpu_affinity=tuple(c + 20 * (i // 4) for c in (*range(20), *range(40, 60))),
        )
        for i in range(8)
    )
    nics = tuple(Nic(id=f"mlx5_{i}", kind="infiniband", bandwidth=12.5 * GB) for i in (0, 2, 1, 3))
    wires = links(DGX1, {"NV1": 20 * GB, "NV2": 40 * GB, "SYS": 10 * GB})
    machine = Machine(
        gpus=gpus,
        nics=nics,
        links=wires,
        unknown=(Unknown(what="host", why="a topology text says nothing of the host"),),
        source="dgx1-v100.txt",
    )
    ring = Ring(order=tuple(f"GPU{i}" for i in (0, 3, 2, 1, 5, 6, 7, 4)), bandwidth=40 * GB)
    slowest = next(link for link in wires if link.code == "SYS")
    return machine, Fabric(islands=(tuple(g.id for g in gpus),), slowest_link=slowest, ring=ring, collectives=costs(38))


def costs(speed: float) -> dict[str, Collective]:
    return {
        "all_reduce": Collective(latency=18e-6, bus_bandwidth=speed * GB),
        "all_gather": Collective(latency=12e-6, bus_bandwidth=speed * GB, source="measured"),
    }


def hgx_h100(nics: int = 10, nodes: int = 1) -> tuple[Machine, Fabric]:
    names = [f"GPU{i}" for i in range(8)]
    adapters = [f"NIC{i}" for i in range(nics)]
    header = " ".join(names + adapters)
    rows = [
        " ".join([row, *("X" if row == c else "NV18" for c in names), *(near(i, n, nics) for n in range(nics))])
        for i, row in enumerate(names)
    ]
    wires = links("\n".join([header, *rows]), {"NV18": 478 * GB})
    machine = Machine(
        gpus=tuple(
            Gpu(
                id=name,
                index=i,
                name="NVIDIA H100 80GB HBM3",
                memory=85_520_809_984,
                memory_used=600_000_000,
                compute_capability="9.0",
                pcie=Pcie(generation_max=5, width_max=16),
                numa=i // 4,
                cpu_affinity=tuple(range(0, 52)) if i < 4 else tuple(range(52, 104)),
            )
            for i, name in enumerate(names)
        ),
        nics=tuple(
            Nic(id=name, name=f"mlx5_{i}", kind="infiniband", bandwidth=50 * GB, numa=i * 2 // nics)
            for i, name in enumerate(adapters)
        ),
        links=wires,
        host=Host(
            os="Linux 5.15.0-1042",
            cpu="Intel(R) Xeon(R) Platinum 8480C",
            sockets=2,
            numa_nodes=2,
            cores=104,
            cpus=104,
            memory=2_164_663_517_184,
            memory_available=2_100_000_000_000,
            shm=64 * 2**20,
            memlock=-1,
        ),
        software=Software(
            python="3.11.7", torch="2.13.0", torch_cuda="13.0", nccl="2.29.7", driver="580.82.07", cuda_driver="13.0"
        ),
        environment={"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_0,mlx5_1"},
        nodes=nodes,
    )
    ring = Ring(order=tuple(names), bandwidth=370 * GB)
    return machine, Fabric(islands=(tuple(names),), slowest_link=wires[0], ring=ring, collectives=costs(340))


def near(gpu: int, nic: int, nics: int) -> str:
    if nic == gpu * nics // 8:
        return "PIX"
    return "NODE" if gpu // 4 == nic * 2 // nics else "SYS"


def pair_of_3090() -> tuple[Machine, Fabric]:
    gpus = tuple(
        Gpu(
            id=f"GPU{i}",
            index=i,
            name="NVIDIA GeForce RTX 3090",
            memory=25_769_803_776,
            memory_used=1_900_000_000 if i == 0 else 300_000_000,
            compute_capability="8.6",
            pcie=Pcie(generation=1, width=8 if i else 16, generation_max=4, width_max=16),
            cpu_affinity=tuple(range(24)),
        )
        for i in range(2)
    )
    link = Link(a="GPU0", b="GPU1", code="PHB", kind="host-bridge", bandwidth=11.5 * GB, bandwidth_source="data sheet")
    machine = Machine(
        gpus=gpus,
        links=(link,),
        host=Host(os="Ubuntu 24.04", cpu="AMD Ryzen 9 5900X 12-Core Processor", sockets=1, cores=12, cpus=24),
        software=Software(python="3.12.3", torch="2.11.0", torch_cuda="12.8", nccl="2.28.9", driver="570.124.06"),
        unknown=(Unknown(what="NUMA node of the GPUs", why="this kernel reports -1"),),
    )
    ring = Ring(order=("GPU0", "GPU1"), bandwidth=11.5 * GB)
    return machine, Fabric(islands=(("GPU0",), ("GPU1",)), slowest_link=link, ring=ring, collectives=costs(7.1))


def three_with_one_bridge() -> tuple[Machine, Fabric]:
    gpus = tuple(
        Gpu(
            id=f"GPU{i}",
            index=i,
            name="NVIDIA RTX A6000",
            memory=51_539_607_552,
            pcie=Pcie(generation_max=4, width_max=16),
            numa=i // 2,
        )
        for i in range(3)
    )
    matrix = """
         GPU0 GPU1 GPU2 mlx5_0
    GPU0  X   NV4  SYS  PIX
    GPU1 NV4   X   SYS  PIX
    GPU2 SYS  SYS   X   SYS
    """
    wires = links(matrix, {"NV4": 56 * GB, "SYS": 10 * GB})
    machine = Machine(gpus=gpus, nics=(Nic(id="mlx5_0"),), links=wires)
    ring = Ring(order=("GPU0", "GPU1", "GPU2"), bandwidth=7 * GB)
    groups = tuple(
        GroupCost(gpus=tuple(f"GPU{i}" for i in range(count)), collectives=costs(speed))
        for count, speed in ((2, 48), (3, 7))
    )
    islands = (("GPU0", "GPU1"), ("GPU2",))
    return machine, Fabric(islands=islands, slowest_link=wires[1], ring=ring, collectives=costs(7), groups=groups)


def four_plus_two() -> tuple[Machine, Fabric]:
    matrix = """
         GPU0 GPU1 GPU2 GPU3 GPU4 GPU5
    GPU0  X   PIX  NODE NODE SYS  SYS
    GPU1 PIX   X   NODE NODE SYS  SYS
    GPU2 NODE NODE  X   PIX  SYS  SYS
    GPU3 NODE NODE PIX   X   SYS  SYS
    GPU4 SYS  SYS  SYS  SYS   X   PIX
    GPU5 SYS  SYS  SYS  SYS  PIX   X
    """
    speeds = {"PIX": 31.5 * GB, "NODE": 31.5 * GB, "SYS": 10 * GB}
    gpus = tuple(
        Gpu(id=f"GPU{i}", index=i, name="NVIDIA A10G", memory=24_146_608_128, pcie=Pcie(generation_max=4, width_max=16))
        for i in range(6)
    )
    wires = links(matrix, speeds)
    islands = tuple((f"GPU{i}", f"GPU{i + 1}") for i in (0, 2, 4))
    slowest = next(link for link in wires if link.code == "SYS")
    ring = Ring(order=tuple(f"GPU{i}" for i in range(6)), bandwidth=7 * GB)
    return Machine(gpus=gpus, links=wires), Fabric(islands=islands, slowest_link=slowest, ring=ring)


def without_gpu() -> tuple[Machine, None]:
    machine = Machine(
        host=Host(
            os="Linux 6.1.0", cpu="AMD EPYC 7R32", sockets=1, cores=1, cpus=2, memory=8_300_000_000, virtual=True
        ),
        software=Software(python="3.11.7", torch="2.13.0", nccl=None),
        unknown=(
            Unknown(what="GPUs", why="NVML is not installed: libnvidia-ml.so.1 not found"),
            Unknown(what="links", why="nvidia-smi not found"),
        ),
    )
    return machine, None


def with_parts(machine: Machine, fabric: Fabric | None) -> tuple[Machine, Fabric | None]:
    """Add to a fabric with costs by hand what follows from the machine's links alone."""
    return machine, fabric and replace(
        fabric,
        levels=island_levels(machine),
        subsets=subsets_of(machine),
        shared=shared_links(machine),
        nics=nearest_nics(machine),
        uneven=asymmetries(machine),
    )


MACHINES = {
    "dgx1-v100": with_parts(*dgx1_v100()),
    "hgx-h100": with_parts(*hgx_h100()),
    "two-3090": with_parts(*pair_of_3090()),
    "three-a6000": with_parts(*three_with_one_bridge()),
    "six-a10g": with_parts(*four_plus_two()),
    "no-gpu": without_gpu(),
    "1024-hosts": with_parts(*hgx_h100(nics=8, nodes=1024)),
}
BROKEN_LINK = Finding(
    code="NET102",
    name="nvlink-switched-off",
    severity="error",
    message="NVLink of GPU3 is inactive: all_reduce falls from 340 GB/s to 11 GB/s",
    remedy="reseat the bridge, then: nvidia-smi nvlink -s",
)


def report(name: str, width: int = 80, *findings: Finding, colour: bool = False) -> str:
    machine, fabric = MACHINES[name]
    return render(machine_report(machine, fabric, findings, again="advisor probe"), width=width, colour=colour)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_described(name: str, width: int, page: SnapshotAssertion) -> None:
    assert report(name, width, BROKEN_LINK) == page


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", MACHINES)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    assert max(len(line) for line in report(name, width).splitlines()) <= width


@pytest.mark.parametrize("width", [60, 80, 140])
def test_every_device_and_code_is_there_at_any_width(width: int) -> None:
    words = set(re.findall(r"[\w.-]+", report("dgx1-v100", width)))
    assert words >= {f"GPU{i}" for i in range(8)} | {f"mlx5_{i}" for i in range(4)} | {"NV1", "NV2", "SYS", "PIX"}


def what_the_links_give(name: str) -> str:
    text = report(name, 110)
    return text[text.index("What the links give") :]


def test_only_groups_with_better_links_are_named_best() -> None:
    assert "best 2 of 3   GPU0-1  NV4, all_reduce at 48 GB/s\n" in what_the_links_give("three-a6000")
    six = what_the_links_give("six-a10g")
    assert re.findall(r"best (\d) of 6 +(\S+)", six) == [("4", "GPU0-3")]
    assert "best" not in what_the_links_give("hgx-h100")
    assert "best" not in what_the_links_give("dgx1-v100")


def test_islands_of_islands_are_named_level_by_level() -> None:
    lines = [line.strip() for line in what_the_links_give("six-a10g").splitlines()]
    assert "islands       one PCIe switch: GPU0-1  GPU2-3  GPU4-5" in lines
    assert "one NUMA node: GPU0-3  GPU4-5" in lines


def test_a_nic_across_numa_nodes_is_told_apart_from_a_near_one() -> None:
    text = what_the_links_give("three-a6000")
    assert "one PCIe switch: GPU0-1 mlx5_0\n" in text
    assert "across NUMA nodes: GPU2 mlx5_0\n" in text


def test_what_is_shared_is_named_only_where_the_ring_needs_it() -> None:
    assert "PCIe switch to the host, 31.5 GB/s: GPU0-1, GPU2-3, GPU4-5 each\n" in what_the_links_give("six-a10g")
    assert "link between NUMA nodes, 10 GB/s: GPU0-5\n" in what_the_links_give("six-a10g")
    assert "shared" not in what_the_links_give("hgx-h100")


def test_nothing_is_called_best_where_a_link_of_the_whole_is_lost() -> None:
    machine, _ = three_with_one_bridge()
    torn = replace(machine, links=tuple(link for link in machine.links if link.code != "SYS"))
    fabric = Fabric(islands=(("GPU0", "GPU1"), ("GPU2",)), subsets=subsets_of(torn))
    assert "best" not in render(machine_report(torn, fabric, again=""), width=80, colour=False)


def test_colours_only_decorate() -> None:
    coloured = report("dgx1-v100", colour=True)
    assert "\x1b[32mNV2" in coloured
    assert "\x1b[31mSYS" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == report("dgx1-v100").split()


def test_the_legend_explains_only_codes_that_occur() -> None:
    text = report("two-3090")
    assert "PHB  PCIe, through a host bridge (the CPU)" in text
    assert "SYS" not in text
    assert "NVLinks" not in text


def test_a_pair_that_the_source_does_not_give_is_a_question_mark() -> None:
    machine, fabric = pair_of_3090()
    third = Gpu(id="GPU2", index=2)
    text = render(
        machine_report(replace(machine, gpus=(*machine.gpus, third)), fabric, again=""), width=80, colour=False
    )
    assert "  GPU2 ?    ?    X\n" in text


def test_nothing_of_a_long_reason_is_cut() -> None:
    long = Unknown(what=" ".join(["bandwidth-of-GPU0-and-GPU1"] * 3), why=" ".join(["unreadable-file"] * 20))
    machine = Machine(unknown=(long,))
    text = render(machine_report(machine, None, again=""), width=60, colour=False)
    assert text.count("bandwidth-of-GPU0-and-GPU1") == 3
    assert text.count("unreadable-file") == 20


def test_sixteen_gpus_fit_into_eighty_columns() -> None:
    names = [f"GPU{i}" for i in range(16)]
    matrix = [" ".join(names), *(" ".join([row, *("X" if row == c else "NV18" for c in names)]) for row in names)]
    gpus = tuple(Gpu(id=name, index=i) for i, name in enumerate(names))
    machine = Machine(gpus=gpus, links=links("\n".join(matrix), {}))
    text = render(machine_report(machine, None, again=""), width=80, colour=False)
    assert text.count("NV18") == 16 * 15 + 2  # the cells, the headline and the legend
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("hgx-h100", "8x NVIDIA H100 80GB HBM3, all pairs NV18, one island; ring 370 GB/s"),
        ("two-3090", "2x NVIDIA GeForce RTX 3090, no NVLink (PHB); ring 11.5 GB/s"),
        (
            "1024-hosts",
            "1024 hosts of 8x NVIDIA H100 80GB HBM3 (8192 GPUs); in each all pairs NV18, one island, ring 370 GB/s; "
            "network 400 GB/s per host",
        ),
        ("no-gpu", "No GPU: 2 CPUs, 8.3 GB memory; training runs on the CPUs with gloo"),
    ],
)
def test_the_first_line_says_what_the_machine_is(name: str, headline: str) -> None:
    assert machine_headline(*MACHINES[name]) == headline


def test_the_verdict_is_one_line_however_narrow_the_terminal() -> None:
    assert render(machine_verdict(*MACHINES["1024-hosts"]), width=40, colour=False).count("\n") == 1
