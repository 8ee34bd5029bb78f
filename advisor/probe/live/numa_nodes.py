"""Read the NUMA nodes and their processors: `numactl -H`."""

from pathlib import Path

from advisor.probe.live.sysfs import ROOT, folders, parse_ranges, read
from advisor.rules.machine import NumaNode


def read_numa_nodes(root: Path = ROOT) -> tuple[NumaNode, ...]:
    """List the nodes that have processors; on Grace, GPU memory is a node too."""
    found: list[NumaNode] = []
    for node in folders(root / "sys/devices/system/node"):
        number = node.name.removeprefix("node")
        cpus = parse_ranges(read(node / "cpulist") or "")
        if number.isdecimal() and cpus:
            found.append(NumaNode(id=int(number), cpus=cpus))
    return tuple(found)
