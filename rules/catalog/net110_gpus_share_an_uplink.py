"""Several GPUs share one link to host memory, and the traffic needs it.

## What it finds
GPUs below one PCIe switch whose slots together are wider than the switch's link to the host, where they must use it at
the same time: because they cannot talk to each other, or because the plan keeps states in host memory. (A setting that
keeps them from it is ENV110.)

## Why it matters
Two cards of x16 behind one x16 uplink have half of it each. Data that the cards could exchange below the switch
crosses the uplink twice.

## What to do
Let the cards talk directly, if their model can. With CPU offload spread the ranks over the switches.

## Source
`nvidia-smi topo -m`: PIX and PXB; rules/transport.py counts the GPUs behind one switch
"""

from collections.abc import Iterator

from advisor.rules.contention import Shared, shared_links
from advisor.rules.format import bandwidth, ids
from advisor.rules.links import attachment
from advisor.rules.machine import Machine
from advisor.rules.network import DIRECT_PCIE
from advisor.rules.nvlinks import model_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links
from advisor.rules.transport import peer_to_peer


@rule("NET110", "gpus-share-an-uplink")
def check(case: Case) -> Iterator[Finding]:
    machine, plan = case.machine, case.plan
    if not any(link.kind in DIRECT_PCIE for link in gpu_links(machine).values()) and not machine.pci:
        return
    offload = plan is not None and plan.cpu_offload
    for shared in shared_links(machine):
        used = tuple(gpu for gpu in shared.gpus if plan is None or gpu in plan.gpus)
        slots = [attachment(machine.gpu(gpu)) for gpu in used]
        wanted = sum(slot for slot in slots if slot is not None)
        if shared.kind not in DIRECT_PCIE or shared.bandwidth is None or None in slots:
            continue
        if len(used) < 2 or wanted <= shared.bandwidth or not (offload or _through_the_host(machine, shared)):
            continue
        why = "the plan keeps states in host memory" if offload else "they exchange data through host memory"
        yield Finding(
            code="NET110",
            name="gpus-share-an-uplink",
            severity="info",
            message=(
                f"{ids(used)} share an uplink of {bandwidth(shared.bandwidth)}, "
                f"{bandwidth(shared.bandwidth / len(used))} each; {why}"
            ),
            facts={"uplink": shared.bandwidth, "each": shared.bandwidth / len(used), "gpus": list(used)},
            remedy=(
                f"spread the ranks over the switches: advisor recommend --gpus {len(machine.gpus) // len(used)}"
                if offload
                else "nvidia-smi topo -p2p r must print OK for direct traffic; else put fewer cards below a switch"
            ),
        )


def _through_the_host(machine: Machine, shared: Shared) -> bool:
    """Say whether the cards below the switch can't reach each other directly."""
    links = [link for pair, link in gpu_links(machine).items() if pair <= set(shared.gpus)]
    if any(link.kind in ("nvlink", "xgmi") for link in links) or not peer_to_peer(machine):
        return False
    models = [model_of(machine.gpu(gpu)) for gpu in shared.gpus]
    told = [p.status for p in machine.peer_access if {p.a, p.b} <= set(shared.gpus) and p.capability == "read"]
    able = set(told) == {"OK"} if told else all(model is None or model.pcie_p2p for model in models)
    return not able
