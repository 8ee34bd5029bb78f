"""The layout of pictures: everything is there once, nothing overlaps, and text fits."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.picture.layout import layout
from advisor.picture.shapes import BARS, DEVICES, Box, Line, Picture
from advisor.picture.words import LARGE, SMALL, TITLE, text_width
from advisor.probe.load import load_machine
from advisor.rules.fabric import fabric_of
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Link, LinkKind, Machine, Nic, PciNode

FIXTURES = Path(__file__).parents[2] / "fixtures" / "machines"
SAVED = sorted(path.stem for path in FIXTURES.glob("*.json"))
DESCRIBED = [
    "1x l4",
    "2x 3090 bridge",
    "16x v100 nvswitch",
    "6x 4090, 2 sockets, switch",
    "1024x8 h100 nvswitch, ib 8x400",
    "2x4 a10g, ethernet 100",
    "4x4 a100, ib 32x200",
    "3x2 l4",
    "36x h100 nvswitch, 2 sockets",
    "20x a100 pcie 80gb, 2 sockets",
]
KINDS: dict[str, LinkKind] = {
    "NV1": "nvlink",
    "NV4": "nvlink",
    "XGMI": "xgmi",
    "PIX": "pcie-switch",
    "PXB": "pcie-switches",
    "PHB": "host-bridge",
    "NODE": "numa-node",
    "SYS": "inter-socket",
}


def picture_of(machine: Machine) -> Picture:
    return layout(machine, fabric_of(machine), "title")


def saved(name: str) -> Machine:
    return load_machine(str(FIXTURES / f"{name}.json"))


def rows(*rows: str, numa: tuple[int | None, ...] = ()) -> Machine:
    """Make a machine from the rows of a matrix, its upper half: `GPU0 GPU1 NIC0`, `PIX PHB`, `PHB`."""
    names = rows[0].split()
    links = [
        Link(a=names[i], b=names[i + 1 + j], code=code, kind=KINDS[code])
        for i, row in enumerate(rows[1:])
        for j, code in enumerate(row.split())
        if code != "?"
    ]
    gpus = [name for name in names if name.startswith("GPU")]
    where = dict(zip(gpus, numa, strict=False))
    return Machine(
        gpus=tuple(Gpu(id=name, index=i, name="NVIDIA A40", numa=where.get(name)) for i, name in enumerate(gpus)),
        nics=tuple(Nic(id=name) for name in names if name not in gpus),
        links=tuple(links),
        source="a test",
    )


def holds(outer: Box, inner: Box) -> bool:
    return (
        outer.x <= inner.x + 1e-6
        and outer.y <= inner.y + 1e-6
        and inner.right <= outer.right + 1e-6
        and inner.bottom <= outer.bottom + 1e-6
    )


def apart(a: Box, b: Box) -> bool:
    return a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y


def check(machine: Machine, picture: Picture) -> None:
    """Assert what holds for the picture of any machine."""
    shown = sorted(device for box in picture.boxes if box.kind in DEVICES for device in box.devices)
    assert shown == sorted([*(gpu.id for gpu in machine.gpus), *(nic.id for nic in machine.nics)])
    for a, b in combinations(picture.boxes, 2):
        assert apart(a, b) or holds(a, b) or holds(b, a), (a, b)
        if a.kind in (*DEVICES, *BARS) and b.kind in (*DEVICES, *BARS):
            assert apart(a, b), (a, b)
    for box in picture.boxes:
        assert box.x >= 0 and box.right <= picture.width
        assert box.bottom <= picture.height
        for i, words in enumerate(box.lines):
            size = LARGE if box.kind in DEVICES and i == 0 else SMALL
            bold = box.slowest or box.kind in (*BARS, "host") or size == LARGE
            assert text_width(words, size, bold=bold) <= box.width, words
    for words in picture.caption:
        assert text_width(words, SMALL) <= picture.width
    for words in picture.title:
        assert text_width(words, TITLE, bold=True) <= picture.width
    for key in picture.keys:
        assert key.x + text_width(key.words, SMALL) <= picture.width


def frame_of(picture: Picture, *devices: str) -> Box:
    """Find the frame that holds exactly these devices."""
    return next(box for box in picture.boxes if box.kind not in DEVICES and set(box.devices) == set(devices))


def between(picture: Picture, *ends: str) -> Line:
    return next(line for line in picture.lines if set(line.ends) == set(ends))


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_machine_is_laid_out_without_overlap(name: str) -> None:
    machine = saved(name)
    check(machine, picture_of(machine))


@pytest.mark.parametrize("words", DESCRIBED)
def test_a_described_machine_is_laid_out_without_overlap(words: str) -> None:
    machine = load_machine(words)
    check(machine, picture_of(machine))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    gpus, nics = draw(st.integers(0, 6)), draw(st.integers(0, 9))
    names = [*(f"GPU{i}" for i in range(gpus)), *(f"a_very_long_adapter_name_{i}" for i in range(nics))]
    numa = st.none() | st.integers(0, 3)
    links = []
    for a, b in combinations(names, 2):
        codes = st.sampled_from([*KINDS, None] if b.startswith("GPU") else ["PIX", "PHB", "NODE", "SYS", None])
        code = draw(codes)
        if code is not None:
            links.append(Link(a=a, b=b, code=code, kind=KINDS[code]))
    machine = Machine(
        gpus=tuple(
            Gpu(
                id=f"GPU{i}",
                index=i,
                name=draw(st.sampled_from([None, "NVIDIA RTX PRO 6000 Blackwell Max-Q"])),
                numa=draw(numa),
            )
            for i in range(gpus)
        ),
        nics=tuple(
            Nic(id=name, numa=draw(numa), bandwidth=draw(st.sampled_from([None, 5e10]))) for name in names[gpus:]
        ),
        links=tuple(links),
        nodes=draw(st.sampled_from([1, 2, 4000])),
        source="a test",
    )
    return with_link_bandwidths(machine)


@settings(max_examples=40, deadline=None)
@given(machines())
def test_any_machine_is_laid_out_without_overlap(machine: Machine) -> None:
    check(machine, picture_of(machine))


def test_frames_follow_the_codes() -> None:
    machine = rows("GPU0 GPU1 GPU2 NIC0", "PIX NODE SYS", "NODE SYS", "SYS")
    picture = picture_of(machine)
    assert frame_of(picture, "GPU0", "GPU1").kind == "pcie-switch"
    assert frame_of(picture, "GPU0", "GPU1", "GPU2").kind == "numa-node"
    assert [box.kind for box in picture.boxes if "NIC0" in box.devices] == ["host", "nic"]


def test_what_the_source_has_lost_is_not_drawn() -> None:
    picture = picture_of(rows("GPU0 GPU1", "?"))
    assert [box.kind for box in picture.boxes] == ["host", "gpu", "gpu"]
    assert picture.lines == ()


def test_frames_follow_the_pci_tree_where_nvlink_hides_the_path() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, bus_id=f"0000:0{i + 1}:00.0") for i in range(2))
    bridge = PciNode(id="pci0000:00", kind="host-bridge", numa=0)
    leaves = tuple(PciNode(id=str(gpu.bus_id), kind="gpu", parent=bridge.id) for gpu in gpus)
    links = (Link(a="GPU0", b="GPU1", code="NV4", kind="nvlink"),)
    picture = picture_of(Machine(gpus=gpus, links=links, pci=(bridge, *leaves), source="a test"))
    kinds = [box.kind for box in picture.boxes if set(box.devices) == {"GPU0", "GPU1"}]
    assert kinds == ["host", "numa-node", "host-bridge"]


def test_a_switch_is_one_bar_and_never_a_line_for_each_pair() -> None:
    picture = picture_of(saved("8xh100-nvswitch"))
    assert [box.kind for box in picture.boxes].count("fabric") == 1
    assert len([line for line in picture.lines if line.kind == "nvlink"]) == 8


def test_a_mesh_of_few_is_drawn_link_by_link_with_its_widths() -> None:
    picture = picture_of(saved("8xv100-dgx1"))
    arcs = [line for line in picture.lines if line.curved]
    assert len(arcs) == 16
    assert {line.label for line in arcs} == {"NV1", "NV2"}
    assert between(picture, "GPU0", "GPU3").width > between(picture, "GPU0", "GPU1").width


def test_a_mesh_of_many_is_a_bar_even_where_links_are_lost() -> None:
    rows_below = [" ".join(["XGMI"] * (7 - i)) for i in range(7)]
    names = " ".join(f"GPU{i}" for i in range(8))
    whole = picture_of(rows(names, *rows_below))
    cut = picture_of(rows(names, *rows_below[:-1], "?"))
    assert (
        next(box for box in whole.boxes if box.kind == "mesh").lines[0].startswith("full mesh · XGMI between every two")
    )
    assert (
        next(box for box in cut.boxes if box.kind == "mesh").lines[0].startswith("mesh · XGMI between 27 of 28 pairs")
    )
    assert not any(line.curved for line in (*whole.lines, *cut.lines))


def test_arcs_stay_above_all_boxes() -> None:
    picture = picture_of(saved("8xv100-dgx1"))
    gpus = {box.devices[0]: box for box in picture.boxes if box.kind == "gpu"}
    for line in picture.lines:
        if line.curved:
            assert max(y for _, y in line.points) <= max(gpus[end].y for end in line.ends)


def test_labels_of_arcs_do_not_cover_each_other() -> None:
    arcs = [line for line in picture_of(saved("8xv100-dgx1")).lines if line.curved]
    for a, b in combinations(arcs, 2):
        wide = (text_width(a.label, SMALL) + text_width(b.label, SMALL)) / 2
        assert abs(a.label_at[0] - b.label_at[0]) > wide or abs(a.label_at[1] - b.label_at[1]) > SMALL


def test_the_slowest_link_of_the_ring_is_marked_where_it_runs() -> None:
    sockets = picture_of(saved("4xa100-pcie-pairs"))
    assert [box.kind for box in sockets.boxes if box.slowest] == ["socket"]
    assert not any(line.slowest for line in sockets.lines)
    bridge = picture_of(saved("4xa10g-pcie3x8"))
    assert [box.kind for box in bridge.boxes if box.slowest] == ["host-bridge"]
    pair = picture_of(saved("2x3090-bridge"))
    assert [set(line.ends) for line in pair.lines if line.slowest] == [{"GPU0", "GPU1"}]


def test_the_ring_and_the_sources_of_the_numbers_are_said() -> None:
    caption = " ".join(picture_of(saved("4xa100-pcie-pairs")).caption)
    assert "GPU0 → GPU1 → GPU2 → GPU3 → GPU0" in caption
    assert "NV12 300 GB/s (data sheet); SYS 10 GB/s (assumed)" in caption


def test_equal_adapters_share_a_box_that_counts_them() -> None:
    machine = Machine(nics=tuple(Nic(id=f"mlx5_{i}") for i in range(36)), source="a test")
    folded = next(box for box in picture_of(machine).boxes if box.lines and box.lines[0] == "33 more")
    assert folded.lines[1] == "mlx5"
    assert len(folded.devices) == 33
    assert "mlx5_3-35" in folded.tooltip


def test_equal_hosts_are_drawn_once_above_their_network() -> None:
    picture = picture_of(load_machine("1024x8 h100 nvswitch, ib 8x400"))
    host, network = picture.boxes[0], picture.boxes[-1]
    assert (host.kind, host.copies, host.lines) == ("host", 1024, ("1,024 hosts like this one",))
    assert network.lines == ("network between 1,024 hosts · 8x InfiniBand 50 GB/s = 400 GB/s a host",)
    assert len([line for line in picture.lines if line.kind == "network"]) == 8


def test_the_legend_explains_only_what_occurs() -> None:
    words = " ".join(key.words for key in picture_of(saved("4xa10g-pcie3x8")).keys)
    assert "PHB" in words
    assert not any(other in words for other in ("NVLink", "PIX", "SYS", "network"))


@pytest.mark.parametrize(
    ("words", "most"), [("16x v100 nvswitch", 1), ("36x h100 nvswitch", 3), ("40x l4, 2 sockets", 3)]
)
def test_more_gpus_than_fit_beside_each_other_stand_in_rows_and_no_line_crosses_one(words: str, most: int) -> None:
    picture = picture_of(load_machine(words))
    gpus = [box for box in picture.boxes if box.kind == "gpu"]
    tops = {box.y for box in gpus}
    assert len(tops) == most
    assert all(sum(box.y == top for box in gpus) <= 16 for top in tops)
    for line in picture.lines:
        for (x1, y1), (x2, y2) in zip(line.points, line.points[1:], strict=False):
            for box in gpus:
                beside = max(x1, x2) <= box.x or min(x1, x2) >= box.right
                assert beside or max(y1, y2) <= box.y or min(y1, y2) >= box.bottom
