"""NCCL could not open an RDMA device, so that hosts may use different sets of them.

## What it finds
"NET/IB : Unable to open device" in NCCL's log: a device that is listed and not usable, mostly in a container.

## Why it matters
NCCL wants the same devices on all hosts. It stops where they differ; with NCCL_IGNORE_NET_MISMATCH=1 it starts and
then hangs without a word: 100 % utilization, no memory traffic and a fraction of the usual power mean that all wait.

## What to do
Pass all devices into the container. Until then the plan leaves the device out on all hosts with NCCL_IB_HCA. Unset
NCCL_IGNORE_NET_MISMATCH.

## Source
https://github.com/NVIDIA/nccl/issues/2428
"""

from collections.abc import Iterator

from advisor.rules.network import log_warnings, rdma_nics, unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

IGNORE = "NCCL_IGNORE_NET_MISMATCH"


@rule("NET115", "rdma-device-cannot-be-opened")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    devices = list(dict.fromkeys(m[1] for m in log_warnings(machine, r"Unable to open device ([\w-]+)")))
    if not devices:
        return
    ignored = machine.nodes > 1 and machine.environment.get(IGNORE, "0") not in ("", "0")
    others = [nic.name for nic in rdma_nics(machine) if nic.name not in devices and nic.state != "down"]
    several = machine.nodes > 1
    env = unset(machine, {"NCCL_IB_HCA": f"^={','.join(devices)}"}) if several else {}
    left = f"; {', '.join(name for name in others if name)} stay" if any(others) else ""
    yield Finding(
        code="NET115",
        name="rdma-device-cannot-be-opened",
        severity="error" if ignored else "warning" if several else "info",
        message=(
            f"NCCL could not open {', '.join(devices)}: the sets of RDMA devices differ between hosts"
            + (f", and {IGNORE}=1 turns that into a silent hang" if ignored else "")
            + (f"; the plan leaves it out with NCCL_IB_HCA={env['NCCL_IB_HCA']}{left}" if env else "")
        ),
        facts={"devices": devices} | ({"variable": IGNORE} if ignored else {}) | ({"env": env} if env else {}),
        remedy=(f"unset {IGNORE}; " if ignored else "")
        + "pass /dev/infiniband into the container on all hosts, or leave the device out on all of them",
    )
