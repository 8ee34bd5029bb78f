from pathlib import Path

import pytest

from advisor.probe.text.nccl_graph import read_nccl_graphs
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import NcclGraph

DUMP = (Path(__file__).parents[2] / "fixtures/captures/2xh200/nccl-graph.xml").read_text()


def graphs(text: str) -> tuple[NcclGraph, ...]:
    machine = read_nccl_graphs(text, "graph.xml")
    assert machine is not None
    return machine.nccl_graphs


def test_the_rings_and_trees_of_a_dump_are_read() -> None:
    ring, tree, *unused = graphs(DUMP)
    assert (ring.id, ring.pattern, ring.type_intra, ring.type_inter) == (0, 4, "NVL", "PIX")
    assert ring.channels == ((0, 1),) * 12
    assert (ring.bandwidth_intra, ring.bandwidth_inter) == (30e9, 30e9)
    assert tree.channels[-1] == (1, 0)
    assert [(graph.id, graph.channels) for graph in unused] == [(4, ()), (2, ()), (3, ())]


def test_a_prompt_around_the_dump_does_no_harm() -> None:
    assert graphs(f"$ cat graph.xml\n{DUMP}$ ") == graphs(DUMP)


def test_an_old_dump_without_ids_is_counted_in_nccls_order() -> None:
    text = (
        '<graphs version="1"><graph nchannels="1" speedintra="12" typeintra="PHB"><channel><net dev="1"/><gpu dev="3"/>'
    )
    text += '<net dev="1"/></channel></graph><graph nchannels="0"/></graphs>'
    first, second = graphs(text)
    assert (first.id, second.id) == (0, 1)
    assert (first.channels, first.bandwidth_intra, first.type_intra) == (((3,),), 12e9, "PHB")


@pytest.mark.parametrize("text", ["", "GPU0 X", '<system version="1"><cpu/></system>', "<graphs/>"])
def test_a_text_without_graphs_is_none(text: str) -> None:
    assert read_nccl_graphs(text, "x") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DUMP[:300], "ends too early"),
        (DUMP.replace('dev="0x1"', 'dev="one"', 1), "one"),
        (DUMP.replace('speedintra="30"', 'speedintra="nan"'), "nan"),
        (DUMP.replace('id="0"', 'id="ring"'), "ring"),
        (f'<graphs><graph id="0">{"<channel/>" * 300}</graph></graphs>', "300 channels"),
    ],
)
def test_graphs_that_are_cut_or_wrong_are_refused(text: str, said: str) -> None:
    with pytest.raises(AdvisorError, match=said) as refused:
        read_nccl_graphs(text, "x")
    assert "NCCL_GRAPH_DUMP_FILE" in refused.value.hint
