"""The script sends tensors with torch.distributed.rpc, as parameter servers do.

## What it finds
A script that uses `torch.distributed.rpc` to call other processes, on a plan with several ranks.

## Why it matters
A parameter server takes in the gradients of n workers and sends n copies of the weights: n times the model in each
direction over one host's link. A ring all-reduce moves 2 (n - 1) / n times the model over each link, at most twice,
however many ranks there are, and NCCL does it beside the backward pass.

## What to do
Train dense models with DistributedDataParallel. A server is worth it for embedding tables too large for a GPU, of
which a batch touches few rows.

## Source
Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009; https://docs.pytorch.org/docs/stable/rpc.html
"""

from collections.abc import Iterator

from advisor.rules.format import memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

CALLS = ("rpc_sync", "rpc_async", "remote")


@rule("PAR112", "gradients-sent-by-rpc")
def check(case: Case) -> Iterator[Finding]:
    script, plan, job = case.script, case.plan, case.job
    if script is None or plan is None or plan.ranks == 1:
        return
    used = next((name for call in CALLS for name in script.uses if name == f"torch.distributed.rpc.{call}"), None)
    if used is None:
        return
    ranks = plan.ranks
    ring = 2 * (ranks - 1) / ranks
    size = 4.0 * job.trainable_params if job else None
    sums = f" ({memory(ranks * size)} against {memory(ring * size)} per step)" if size else ""
    yield Finding(
        code="PAR112",
        name="gradients-sent-by-rpc",
        severity="info",
        message=(
            f"{used.removeprefix('torch.distributed.')} sends tensors: with {ranks} workers a server's link carries "
            f"{ranks} times the gradients each way, a link under all-reduce {ring:.2g} times{sums}"
        ),
        facts={"ranks": ranks, "server": ranks if size is None else ranks * size, "ring": ring * (size or 1)},
        remedy="train dense parameters with DistributedDataParallel; keep rpc for huge sparse embedding tables",
        file=script.path,
        line=script.lines.get(used),
    )
