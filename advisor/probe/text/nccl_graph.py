"""Read NCCL's graphs, the rings and trees that it laid: what NCCL_GRAPH_DUMP_FILE writes."""

import math
import re
from xml.etree.ElementTree import Element

from advisor.probe.text.xml_element import find_element
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine, NcclGraph

AGAIN = "write the file again: NCCL_GRAPH_DUMP_FILE=graph.xml torchrun ..."
GB = 1e9  # NCCL's unit, per second and channel
MOST_CHANNELS = 256  # MAXCHANNELS is 64


def read_nccl_graphs(text: str, source: str) -> Machine | None:
    """Build a machine of which only the graphs are known. Raises AdvisorError where they are broken."""
    found = find_element(text, "graphs", "<graph ")
    if found is None:
        return None
    graphs, _ = found
    return Machine(
        nccl_graphs=tuple(_graph(place, element) for place, element in enumerate(graphs.findall("graph"))),
        source=source,
    )


def _graph(place: int, element: Element) -> NcclGraph:
    """Read one graph; old dumps have no ids, but the order is ring, tree, CollNet."""
    channels = element.findall("channel")
    if len(channels) > MOST_CHANNELS:
        raise AdvisorError(f"a graph of NCCL's dump has {len(channels)} channels", AGAIN)
    return NcclGraph(
        id=_integer(element, "id", default=place),
        pattern=_integer(element, "pattern", default=0),
        channels=tuple(tuple(_integer(gpu, "dev") for gpu in channel.findall("gpu")) for channel in channels),
        bandwidth_intra=GB * _speed(element, "speedintra"),
        bandwidth_inter=GB * _speed(element, "speedinter"),
        type_intra=element.get("typeintra", ""),
        type_inter=element.get("typeinter", ""),
    )


def _integer(element: Element, name: str, default: int | None = None) -> int:
    """Read a number as C does: 1 and 0x1."""
    text = element.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"-?(\d{1,20}|0[xX][0-9a-fA-F]{1,16})", text):
        raise AdvisorError(f'NCCL\'s graphs have <{element.tag}> with {name}="{text or ""}", which is no number', AGAIN)
    return int(text, 16 if "x" in text.lower() else 10)


def _speed(element: Element, name: str) -> float:
    text = element.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise AdvisorError(f'NCCL\'s graphs have {name}="{text}", which is no speed', AGAIN)
    return value
