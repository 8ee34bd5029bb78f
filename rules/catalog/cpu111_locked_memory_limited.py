"""The limit of locked memory is too low for RDMA.

## What it finds
`ulimit -l` below 1 GiB on a host with InfiniBand, RoCE or EFA adapters, unless NCCL_IB_DISABLE is set.

## Why it matters
RDMA needs pinned buffers: about 10 MB for each channel and peer. Beyond the limit `ibv_reg_mr` fails with "Cannot
allocate memory" and NCCL stops. Processes of root or with CAP_IPC_LOCK are not limited.

## What to do
Raise the limit and check it inside the launched process or container, not only in a login shell. NCCL_IB_DISABLE=1
would hide the fault and give up the fast network.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; https://github.com/NVIDIA/nccl-tests/issues/206
"""

from collections.abc import Iterator

from advisor.rules.format import binary, plural
from advisor.rules.hardware import GIB
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

RDMA = ("infiniband", "roce", "efa")


@rule("CPU111", "locked-memory-limited")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    limit = machine.host.memlock
    adapters = [nic for nic in machine.nics if nic.kind in RDMA]
    off = machine.environment.get("NCCL_IB_DISABLE", "0") not in ("", "0")
    if limit is None or not 0 <= limit < GIB or not adapters or off:
        return
    several = machine.nodes > 1 if case.plan is None else case.plan.nodes > 1
    yield Finding(
        code="CPU111",
        name="locked-memory-limited",
        severity="warning" if several else "info",
        message=f"ulimit -l allows {binary(limit)} locked; RDMA over {plural(len(adapters), 'adapter')} pins more",
        facts={"memlock": limit, "adapters": len(adapters)},
        remedy=(
            "ulimit -l unlimited; docker run --ulimit memlock=-1; systemd LimitMEMLOCK=infinity; "
            "check with `ulimit -l` inside the job"
        ),
    )
