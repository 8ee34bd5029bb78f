"""NCCL_IB_HCA takes other RDMA adapters than it names.

## What it finds
A name in NCCL_IB_HCA that also begins the names of other adapters of this host (mlx5_1 takes mlx5_10 to mlx5_19 as
well), and a list that fits no adapter at all.

## Why it matters
NCCL compares the beginning of the name unless the list starts with =. What was meant to keep a storage or management
adapter out, or in, then does something else. Where nothing fits, NCCL goes over TCP, or fails.

## What to do
Start the list with = for exact names: NCCL_IB_HCA==mlx5_1. `ibv_devices` lists the names.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca; src/misc/utils.cc, matchIf
"""

import re
from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.nccl_variables import setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

_LABEL = re.compile(r"NIC\d+")  # what nvidia-smi calls an adapter whose name it does not print


@rule("ENV113", "nccl-adapters-mismatched")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    found = setting(machine, "NCCL_IB_HCA")
    named = [nic for nic in machine.nics if nic.kind != "ethernet"]
    adapters = [nic.name or nic.id for nic in named if nic.name or not _LABEL.fullmatch(nic.id)]
    if found is None or not adapters or len(adapters) < len(named):
        return
    sign, listed = _read(found.value)
    if "=" not in sign:
        for name in listed:
            more = [other for other in adapters if other.startswith(name) and other != name]
            if name in adapters and more:
                yield Finding(
                    code="ENV113",
                    name="nccl-adapters-mismatched",
                    severity="info",
                    message=f"{found.words}: {name} is the beginning of {ids(more)} too, which it takes as well",
                    facts=found.facts | {"name": name, "also": more},
                    remedy=f"set NCCL_IB_HCA={sign}={','.join(listed)} for exact names",
                )
    taken = [other for other in adapters for name in listed if _fits(other, name, exact="=" in sign)]
    left = [other for other in adapters if other not in taken] if "^" in sign else taken
    if not left:
        yield Finding(
            code="ENV113",
            name="nccl-adapters-mismatched",
            severity="warning",
            message=f"{found.words} leaves none of {ids(adapters)}, so NCCL goes over TCP or fails",
            facts=found.facts | {"adapters": adapters},
            remedy=f"{found.undo}, or name adapters that `ibv_devices` lists",
        )


def _read(value: str) -> tuple[str, list[str]]:
    """Split the signs ^ and = from the names, and ports off these."""
    names = value.lstrip("^=")
    sign = value[: len(value) - len(names)]
    return sign, [name.partition(":")[0] for name in names.split(",") if name]


def _fits(adapter: str, name: str, *, exact: bool) -> bool:
    return adapter == name if exact else adapter.startswith(name)
