"""Adapters of different rails cannot reach each other.

## What it finds
"ibv_modify_qp failed with 110 Connection timed out" in NCCL's log, with a remote address in another subnet than the
local one: the adapter tried to reach one of another number on the other host.

## Why it matters
In a rail-optimised network adapter 0 of each host hangs on one switch, adapter 1 on the next. Where the rails are not
joined, a ring works, but gathers and all-to-alls, such as those of a checkpoint, time out.

## What to do
The plan sets NCCL_CROSS_NIC=0: traffic stays on its rail. Test pairs of adapters to be sure: NCCL_IB_HCA==mlx5_0
alone, then two. Newer NCCL keeps to the rail by itself.

## Source
https://github.com/NVIDIA/nccl/issues/2013, https://github.com/NVIDIA/nccl/issues/1664
"""

from collections.abc import Iterator

from advisor.rules.network import log_warnings, unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

_TIMEOUT = (
    r"ibv_modify_qp failed with (?:error )?110.*?(?:on dev (?P<dev>\S+?)[:,]).*"
    r"local GID (?:index \d+, local GID )?(?P<local>[0-9a-f:.]+).*remote GID (?P<remote>[0-9a-f:.]+)"
)


@rule("NET127", "rails-do-not-cross")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    crossed = [m for m in log_warnings(machine, _TIMEOUT) if _subnet(m["local"]) != _subnet(m["remote"])]
    if machine.nodes == 1 or not crossed:
        return
    first = crossed[0]
    env = unset(machine, {"NCCL_CROSS_NIC": "0"})
    yield Finding(
        code="NET127",
        name="rails-do-not-cross",
        severity="warning",
        message=(
            f"{first['dev']} ({first['local']}) timed out on {first['remote']}, which is on another rail"
            + ("; the plan sets NCCL_CROSS_NIC=0, which keeps traffic on its rail" if env else "")
        ),
        facts={"device": first["dev"], "timeouts": len(crossed)} | ({"env": env} if env else {}),
        remedy="test pairs of adapters: export NCCL_IB_HCA==mlx5_0 and run all_reduce_perf, then add the next",
    )


def _subnet(gid: str) -> str:
    """Return what names the rail: of an IPv4 address the first three bytes, of another GID the first half."""
    address = gid.rpartition(":")[2]
    return address.rpartition(".")[0] if "." in address else ":".join(gid.split(":")[:4])
