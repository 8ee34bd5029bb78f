"""The network between hosts has less than 10 Gb/s.

## What it finds
Several hosts of which no adapter reaches 10 Gb/s.

## Why it matters
At 1 Gb/s a 1B model's gradients in fp32 take half a minute, each step. Two hosts are then slower in total than one,
and no bucket size helps a link that is full.

## What to do
Stay on one host, or reduce gradients rarely: DDP with much accumulation. Sharded strategies gather the weights in each
micro-batch as well.

## Source
https://github.com/facebookresearch/fairseq/issues/789, https://github.com/facebookresearch/fairscale/issues/1041
"""

from collections.abc import Iterator

from advisor.rules.fabric import bus_factor
from advisor.rules.format import bandwidth, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SLOW = 1.25e9  # bytes per second


@rule("NET128", "slow-network-between-hosts")
def check(case: Case) -> Iterator[Finding]:
    machine, job, plan = case.machine, case.job, case.plan
    rates = [nic.bandwidth for nic in machine.nics]
    known = [rate for rate in rates if rate is not None]
    if machine.nodes == 1 or not known or None in rates or max(known) >= SLOW:
        return
    best = max(known)
    size = 4.0 * job.trainable_params if job is not None else None
    sum_of_it = f": {4 * job.trainable_params / 1e9:.3g} GB of gradients" if job is not None else ""
    took = f" take {seconds(bus_factor('all_reduce', machine.nodes) * size / best)}" if size is not None else ""
    several = plan is None or plan.nodes > 1
    yield Finding(
        code="NET128",
        name="slow-network-between-hosts",
        severity="warning" if several else "info",
        message=(
            f"{machine.nodes} hosts are joined by {bandwidth(best)}{sum_of_it}{took}; no bucket size helps a full link"
        ),
        facts={"bandwidth": best, "gradients": size},
        remedy="stay on one host (advisor recommend --nodes 1), or accumulate: a larger --global-batch",
    )
