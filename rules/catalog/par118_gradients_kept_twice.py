"""The script tells DDP to keep gradients apart from its buckets: there are two copies of them.

## What it finds
`gradient_as_bucket_view=False` written out in the script's DistributedDataParallel call. (Where it is left unsaid, a
plan sets it, and `advisor apply` does so.)

## Why it matters
Buckets hold all gradients once more, 4 bytes per parameter in fp32. As views they share the memory: 851 against
370-466 MiB beside 256 MiB of parameters.

## What to do
Leave the argument out, or pass True. Then `grad.detach_()` is not allowed, which today's `zero_grad` does not do.

## Source
torch.nn.parallel.DistributedDataParallel, `gradient_as_bucket_view`; measured with PyTorch 2.13
"""

from collections.abc import Iterator

from advisor.rules.catalog.par119_bucket_size_in_script import ddp_line
from advisor.rules.format import memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR118", "gradients-kept-twice")
def check(case: Case) -> Iterator[Finding]:
    script, plan, job = case.script, case.plan, case.job
    if script is None or script.ddp_arguments.get("gradient_as_bucket_view") is not False:
        return
    if plan is not None and (plan.ranks == 1 or plan.strategy != "ddp"):
        return
    size = 4 * job.trainable_params if job else None
    cost = f"{memory(size)}" if size else "4 bytes per parameter"
    yield Finding(
        code="PAR118",
        name="gradients-kept-twice",
        severity="info",
        message=f"gradient_as_bucket_view=False in the script keeps gradients beside the buckets: {cost} more per GPU",
        facts={"bytes": size, "bytes_per_parameter": 4},
        remedy="pass gradient_as_bucket_view=True to DistributedDataParallel, or leave it to the plan",
        file=script.path,
        line=ddp_line(case),
    )
