"""Read any text that describes a machine: every reader takes what it knows, and the parts make one machine."""

from collections.abc import Callable
from typing import NamedTuple

from advisor.probe.merge import merge
from advisor.probe.text.acs import read_acs
from advisor.probe.text.answers import read_answers
from advisor.probe.text.ip_address import read_ip_address
from advisor.probe.text.kernel import read_kernel
from advisor.probe.text.limits import read_limits
from advisor.probe.text.nccl_graph import read_nccl_graphs
from advisor.probe.text.nccl_log import read_nccl_log
from advisor.probe.text.nccl_xml import read_nccl_topology
from advisor.probe.text.nvlink_status import read_nvlink_status
from advisor.probe.text.peer_access import read_peer_access
from advisor.probe.text.rdma import read_rdma
from advisor.probe.text.refusal import refusal
from advisor.probe.text.rendezvous import read_rendezvous
from advisor.probe.text.rocm import read_rocm_topology
from advisor.probe.text.shared_memory import read_shared_memory
from advisor.probe.text.smi_csv import read_smi_csv
from advisor.probe.text.smi_list import read_smi_list
from advisor.probe.text.smi_query import read_smi_query
from advisor.probe.text.smi_table import read_smi_table
from advisor.probe.text.topo_m import read_topo_m
from advisor.probe.text.variables import read_variables
from advisor.rules.machine import Machine


class Reader(NamedTuple):
    """Something that a text may hold. `read` returns None where it holds no such thing."""

    what: str
    read: Callable[[str, str], Machine | None]  # (text, source)


# The first that names a GPU gives it its id.
READERS = (
    Reader("nvidia-smi topo -m", read_topo_m),
    Reader("nvidia-smi -q", read_smi_query),
    Reader("nvidia-smi", read_smi_table),
    Reader("nvidia-smi -L", read_smi_list),
    Reader("nvidia-smi --query-gpu", read_smi_csv),
    Reader("nvidia-smi nvlink -s", read_nvlink_status),
    Reader("nvidia-smi topo -p2p", read_peer_access),
    Reader("rocm-smi --showtopo", read_rocm_topology),
    Reader("NCCL_TOPO_DUMP_FILE", read_nccl_topology),
    Reader("NCCL_GRAPH_DUMP_FILE", read_nccl_graphs),
    Reader("NCCL_DEBUG=INFO", read_nccl_log),
    Reader("errors of connections", read_rendezvous),
    Reader("/proc/cmdline and dmesg", read_kernel),
    Reader("df and ls -l /dev/shm", read_shared_memory),
    Reader("ip address, ip route, ifconfig", read_ip_address),
    Reader("ibstat, ibstatus, ibv_devinfo, rdma link", read_rdma),
    Reader("ulimit -a, /proc/self/limits", read_limits),
    Reader("lspci -vvv", read_acs),
    Reader("env, export", read_variables),
    Reader("commands with their answers", read_answers),
)


def machine_from_text(text: str, source: str) -> Machine:
    """Build a machine from all that a text holds. Raises AdvisorError where that is nothing, or contradicts itself."""
    parts = [part for reader in READERS if (part := reader.read(text, source)) is not None]
    if not parts:
        raise refusal(text)
    return merge(parts)
