"""The plan's GPUs hang on several NUMA nodes, and nothing binds the ranks to them.

## What it finds
A plan on GPUs of two or more NUMA nodes whose launcher binds no rank to the node of its GPU.

## Why it matters
The kernel may run a rank on the other socket. Its copies to the GPU, its pinned memory and NCCL's buffers in host
memory then cross the link between the sockets. torchrun's documentation puts the cost at 1 to 10 %.

## What to do
Bind each rank to its GPU's node. Compare step times once: a binding that hides free processors from the loader's
workers can cost more than it gains.

## Source
https://docs.pytorch.org/docs/stable/elastic/numa.html
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("CPU101", "gpus-on-several-numa-nodes")
def check(case: Case) -> Iterator[Finding]:
    if case.plan is None or case.plan.launcher.numa_binding is not None:
        return
    nodes: dict[int, list[str]] = {}
    for gpu in gpus_of(case):
        if isinstance(gpu.numa, int) and gpu.numa >= 0:
            nodes.setdefault(gpu.numa, []).append(gpu.id)
    if len(nodes) < 2:
        return
    homes = "; ".join(f"{ids(members)} on node {node}" for node, members in sorted(nodes.items()))
    yield Finding(
        code="CPU101",
        name="gpus-on-several-numa-nodes",
        severity="info",
        message=f"the GPUs hang on {len(nodes)} NUMA nodes and no rank is bound to its own: {homes}",
        facts={"numa_nodes": len(nodes), "gpus_by_node": {str(node): found for node, found in sorted(nodes.items())}},
        remedy='torchrun --numa-binding=node; in plan.json, "numa_binding": "node" under "launcher"',
    )
