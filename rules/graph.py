"""The machine as a networkx graph, for paths, pictures and exports. (networkx costs 80 ms: import it where it is used.)

Nodes have a `kind` (gpu, nic, pcie-switch, pcie-switches, host-bridge, numa-node, nvswitch, host, rail, network), a
`label`, the number of their `host`, and the `parent` that holds them. Edges have a `kind` and, where it is known, a
`bandwidth` (bytes per second, one direction) with its `source`. All are plain values, and what is unknown is absent, so
that GraphML and Graphviz can hold them.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from advisor.rules.machine import Link, LinkKind, Machine, Nic
from advisor.rules.pcie_tree import Tree, pcie_tree
from advisor.rules.topology import gpu_links, has_nvswitch, hop_cost

if TYPE_CHECKING:
    import networkx as nx

Attributes = dict[str, str | int | float]

_DIRECT: tuple[LinkKind, ...] = ("nvlink", "xgmi", "c2c", "host-memory")
_RAILS = ("infiniband", "roce")  # networks that are built with one switch for the adapters of one number
NVSWITCH = "NVSwitch"


class _Edge(NamedTuple):
    a: str
    b: str
    attributes: Attributes


def graph_of(machine: Machine, hosts: int = 1) -> "nx.Graph[str]":
    """Build the graph of one host, or of several (at most all) that a network joins; then ids start with host0/.

    Several hosts are joined by rails, rail k to NIC k of each, where each GPU can have an adapter of its own, else by
    one network.
    """
    import networkx as nx

    count = min(hosts, machine.nodes)
    tree = pcie_tree(machine)
    nodes, edges = dict(_nodes(machine, tree)), list(_edges(machine, tree))
    graph: nx.Graph[str] = nx.Graph()
    for host in range(count):
        prefix = f"host{host}/" if count > 1 else ""
        top = f"host{host}"
        graph.add_node(top, kind="host", label=f"host {host}" if count > 1 else "host", host=host)
        for node, attributes in nodes.items():
            parent = prefix + str(attributes["parent"]) if "parent" in attributes else top
            graph.add_node(prefix + node, **attributes | {"host": host, "parent": parent})
            if "parent" not in attributes:
                graph.add_edge(top, prefix + node, kind="host")
        graph.add_edges_from((prefix + edge.a, prefix + edge.b, edge.attributes) for edge in edges)
    if count > 1:
        _join_hosts(graph, machine, count)
    return graph


def widest_path(machine: Machine, a: str, b: str) -> tuple[str, ...]:
    """Return the shortest of the paths over GPUs whose slowest link is fastest; () where no links join the two."""
    import networkx as nx

    cost = hop_cost(machine)
    links = gpu_links(machine).values()
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from((a, b))
    for limit in sorted({cost(link.a, link.b) for link in links}):
        graph.add_edges_from((link.a, link.b) for link in links if cost(link.a, link.b) == limit)
        if nx.has_path(graph, a, b):
            return tuple(nx.shortest_path(graph, a, b))
    return ()


def network_nics(machine: Machine) -> tuple[Nic, ...]:
    """Return the adapters that NCCL would use between hosts: RDMA ones if there are any, of these the fastest."""
    rdma = [nic for nic in machine.nics if nic.kind != "ethernet"] or list(machine.nics)
    fastest = max((nic.bandwidth or 0.0 for nic in rdma), default=0.0)
    return tuple(nic for nic in rdma if (nic.bandwidth or 0.0) == fastest)


def _nodes(machine: Machine, tree: Tree) -> Iterator[tuple[str, Attributes]]:
    gpus, nics = {gpu.id: gpu for gpu in machine.gpus}, {nic.id: nic for nic in machine.nics}
    for node in tree.nodes:
        attributes: dict[str, str | int | float | None] = {"kind": node.kind, "label": node.label}
        attributes["parent"] = node.parent
        if node.id in gpus:
            attributes |= {"model": gpus[node.id].name, "memory": gpus[node.id].memory}
        elif node.id in nics:
            attributes |= {"device": nics[node.id].name, "network": nics[node.id].kind}
        yield node.id, _known(attributes)
    if has_nvswitch(machine):
        switches = sum(node.kind == "nvswitch" for node in machine.pci)
        yield NVSWITCH, {"kind": "nvswitch", "label": f"{switches} NVSwitches" if switches > 1 else NVSWITCH}


def _edges(machine: Machine, tree: Tree) -> Iterator[_Edge]:
    kinds = {node.id: node.kind for node in tree.nodes}
    for node in tree.nodes:
        if node.parent is not None:
            yield _edge(node.id, node.parent, kinds[node.parent], node.bandwidth, node.source)
    for between in tree.between:
        yield _edge(between.a, between.b, "inter-socket", between.bandwidth, between.source)
    links = [link for link in machine.links if link.kind in _DIRECT and link.a in kinds and link.b in kinds]
    switched = has_nvswitch(machine)
    ports: dict[str, list[Link]] = {}
    for link in links:
        if switched and link.kind == "nvlink":
            ports.setdefault(link.a, []).append(link)
            ports.setdefault(link.b, []).append(link)
        else:
            yield _edge(link.a, link.b, link.kind, link.bandwidth, link.bandwidth_source)
    for gpu, port in ports.items():
        widest = max(port, key=lambda link: (link.bandwidth_source == "measured", link.bandwidth or 0.0))
        yield _edge(gpu, NVSWITCH, "nvlink", widest.bandwidth, widest.bandwidth_source)


def _edge(a: str, b: str, kind: str, bandwidth: float | None, source: str | None) -> _Edge:
    return _Edge(a, b, _known({"kind": kind, "bandwidth": bandwidth, "source": source}))


def _known(attributes: dict[str, str | int | float | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _join_hosts(graph: "nx.Graph[str]", machine: Machine, hosts: int) -> None:
    nics = network_nics(machine)
    rails = len(nics) >= len(machine.gpus) and all(nic.kind in _RAILS for nic in nics)
    for host in range(hosts):
        ends: Iterable[tuple[str, float | None]] = [(f"host{host}/{nic.id}", nic.bandwidth) for nic in nics]
        for number, (end, bandwidth) in enumerate(ends or [(f"host{host}", None)]):
            rail = f"rail {number}" if rails else "network"
            graph.add_node(rail, kind="rail" if rails else "network", label=rail)
            source = None if bandwidth is None else "data sheet"
            graph.add_edge(end, rail, **_known({"kind": "network", "bandwidth": bandwidth, "source": source}))
