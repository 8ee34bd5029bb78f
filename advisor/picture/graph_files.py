"""The graph of a machine as files that other programs read: Graphviz and GraphML."""

from typing import TYPE_CHECKING

from advisor.rules.graph import graph_of
from advisor.rules.machine import Machine

if TYPE_CHECKING:
    import networkx as nx

MOST_HOSTS = 64  # written one by one; of more, the first ones, and the file says so

_SHAPES = {"gpu": "box", "nic": "component", "nvswitch": "hexagon", "host": "folder", "rail": "diamond"}


def dot_of(machine: Machine) -> str:
    """Write the graph in the language of Graphviz: `dot -Tsvg`, `neato`, ..."""
    graph = _graph(machine)
    lines = ["graph topology {", f"  label={_quoted(_title(machine))};", "  node [shape=ellipse];"]
    for node, attributes in graph.nodes(data=True):
        shape = _SHAPES.get(attributes["kind"])
        lines.append(f"  {_quoted(node)}{_attributes(attributes | ({'shape': shape} if shape else {}))};")
    for a, b, attributes in graph.edges(data=True):
        lines.append(f"  {_quoted(a)} -- {_quoted(b)}{_attributes(attributes)};")
    return "\n".join([*lines, "}", ""])


def graphml_of(machine: Machine) -> str:
    """Write the graph as GraphML, which networkx, Gephi, yEd and igraph read."""
    import networkx as nx

    graph = _graph(machine)
    graph.graph["label"] = _title(machine)
    return "\n".join([*nx.generate_graphml(graph), ""])


def _graph(machine: Machine) -> "nx.Graph[str]":
    return graph_of(machine, hosts=min(machine.nodes, MOST_HOSTS))


def _title(machine: Machine) -> str:
    shown = f", {MOST_HOSTS} of {machine.nodes} equal hosts" if machine.nodes > MOST_HOSTS else ""
    return f"{machine.source}{shown}"


def _attributes(values: dict[str, object]) -> str:
    listed = ", ".join(f"{name}={_quoted(str(value))}" for name, value in values.items())
    return f" [{listed}]" if listed else ""


def _quoted(text: str) -> str:
    """Quote a string of the DOT language: a backslash would start an escape, a quote end the string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
