"""Read any text that describes a machine's links: every reader takes what it knows, and the parts make one machine."""

from collections.abc import Callable
from typing import NamedTuple

from advisor.probe.merge import merge
from advisor.probe.text.nccl_graph import read_nccl_graphs
from advisor.probe.text.nccl_xml import read_nccl_topology
from advisor.probe.text.nvlink_status import read_nvlink_status
from advisor.probe.text.peer_access import read_peer_access
from advisor.probe.text.refusal import refusal
from advisor.probe.text.rocm import read_rocm_topology
from advisor.probe.text.smi_query import read_smi_query
from advisor.probe.text.topo_m import read_topo_m
from advisor.rules.machine import Machine


class Reader(NamedTuple):
    """Something that a text may hold. `read` returns None where it holds no such thing."""

    what: str
    read: Callable[[str, str], Machine | None]  # (text, source)


# The first that names a GPU gives it its id.
READERS = (
    Reader("nvidia-smi topo -m", read_topo_m),
    Reader("nvidia-smi -q", read_smi_query),
    Reader("nvidia-smi nvlink -s", read_nvlink_status),
    Reader("nvidia-smi topo -p2p", read_peer_access),
    Reader("rocm-smi --showtopo", read_rocm_topology),
    Reader("NCCL_TOPO_DUMP_FILE", read_nccl_topology),
    Reader("NCCL_GRAPH_DUMP_FILE", read_nccl_graphs),
)


def machine_from_text(text: str, source: str) -> Machine:
    """Build a machine from all that a text holds. Raises AdvisorError where that is nothing, or contradicts itself."""
    parts = [part for reader in READERS if (part := reader.read(text, source)) is not None]
    if not parts:
        raise refusal(text)
    return merge(parts)
