"""Picture and graph files: they can be read back, and say what the machine is."""

import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest

from advisor.cli import main
from advisor.picture.graph_files import MOST_HOSTS, dot_of
from advisor.picture.png import png_of
from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine, Nic

DGX1 = str(Path(__file__).parents[2] / "fixtures" / "machines" / "8xv100-dgx1.json")
MANY = "1024x8 h100 nvswitch, ib 8x400"
SVG = "{http://www.w3.org/2000/svg}"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def probe(machine: str, name: str) -> Path:
        path = tmp_path / name
        assert main(["probe", "--machine", machine, "-o", str(path)]) == 0
        assert [entry.name for entry in tmp_path.iterdir()] == [name]
        return path

    return probe


def test_a_drawing_is_xml_with_every_device_and_its_full_name(write: Write) -> None:
    root = ElementTree.parse(write(DGX1, "topology.svg")).getroot()
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"GPU0", "GPU7", "mlx5_3", "V100-SXM2", "NV2"} <= words
    assert any("Tesla V100-SXM2-32GB" in (title.text or "") for title in root.iter(f"{SVG}title"))


def test_a_drawing_is_the_same_each_time(write: Write) -> None:
    assert write(DGX1, "topology.svg").read_bytes() == write(DGX1, "topology.svg").read_bytes()


def test_the_ending_may_be_in_capitals(write: Write) -> None:
    assert write(DGX1, "TOPOLOGY.SVG").read_text().startswith("<?xml")


def test_a_bitmap_is_twice_as_large_as_the_drawing(write: Write) -> None:
    root = ElementTree.parse(write(DGX1, "topology.svg")).getroot()
    write(DGX1, "topology.svg").unlink()
    content = write(DGX1, "topology.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == pytest.approx(2 * float(root.attrib["width"]), abs=1)


class Page(HTMLParser):
    """The tags, what they refer to, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_holds_the_drawing_and_the_links_and_needs_nothing_else(write: Write) -> None:
    page = Page(write(DGX1, "topology.html").read_text())
    assert page.tags.count("svg") == 1
    assert not {"script", "link", "img"} & set(page.tags)
    assert page.references == []
    for words in ("Every pair", "2 NVLinks", "8 pairs", "51.6 GB/s", "data sheet", "best ring", "all_reduce"):
        assert words in page.words


def test_names_cannot_break_out_of_the_page() -> None:
    from advisor.picture.page import page_of
    from advisor.rules.fabric import fabric_of

    machine = Machine(nics=(Nic(id="<script>alert(1)</script>"),), source='"><script>')
    page = Page(page_of(machine, fabric_of(machine), (), title="</title><script>", svg="<svg></svg>"))
    assert "script" not in page.tags


def test_graphml_reads_back_as_the_graph(write: Write) -> None:
    graph = nx.read_graphml(write(DGX1, "topology.graphml"))
    kinds = nx.get_node_attributes(graph, "kind")
    assert sum(kind == "gpu" for kind in kinds.values()) == 8
    assert graph.edges["GPU0", "GPU3"]["bandwidth"] == pytest.approx(51.562e9)


def test_hosts_are_written_up_to_a_limit_that_the_file_states(write: Write) -> None:
    text = write(MANY, "topology.dot").read_text()
    assert f"{MOST_HOSTS} of 1024 equal hosts" in text
    assert f'"host{MOST_HOSTS - 1}/GPU7" [' in text
    assert f'"host{MOST_HOSTS}/GPU0"' not in text


def test_names_are_quoted_for_graphviz() -> None:
    text = dot_of(Machine(nics=(Nic(id='a"b\\c'),), source="one\ntwo"))
    assert '"a\\"b\\\\c" [' in text
    assert 'label="one\\ntwo";' in text


@pytest.mark.parametrize(("package", "name"), [("drawsvg", "x.svg"), ("drawsvg", "x.html"), ("resvg_py", "x.png")])
def test_without_its_library_a_picture_says_what_to_install(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["probe", "--machine", "1x l4", "-o", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert package in said[0]
    assert "pip install 'topology-advisor[picture]'" in said[1]
    assert list(tmp_path.iterdir()) == []


def test_without_a_font_a_bitmap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import resvg_py

    render = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **options: render(**options, skip_system_fonts=True))
    with pytest.raises(AdvisorError, match="no font") as caught:
        png_of("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><text>M</text></svg>")
    assert "fonts-dejavu-core" in caught.value.hint


def test_a_graph_needs_no_picture_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "drawsvg", None)
    assert main(["probe", "--machine", DGX1, "-o", str(tmp_path / "topology.dot")]) == 0


def test_a_described_machine_has_a_graph_of_several_hosts() -> None:
    text = dot_of(load_machine("2x8 h100 nvswitch, ib 8x400"))
    assert '"host1/GPU7" --' in text
