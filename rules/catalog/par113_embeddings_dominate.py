"""More than half of the parameters are embeddings: most of the reduced gradients are rows of a table.

## What it finds
A decoder of which the input embedding and the output head hold more than half of the parameters, trained on several
ranks with whole gradients reduced.

## Why it matters
A batch touches at most as many rows of the input table as it has tokens; its dense gradient holds all of them, mostly
zeros, and is reduced, and kept in the optimizer, in full. So cutting layers hardly makes such a step faster.

## What to do
Tie the embedding and the head, or take a smaller vocabulary. For tables much larger than a batch, `nn.Embedding(...,
sparse=True)` with SparseAdam reduces the touched rows only (DDP with gloo or NCCL, not FSDP).

## Source
https://github.com/huggingface/transformers/issues/3274: 12 layers or 1, the same slowdown; torch.nn.Embedding, `sparse`
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory, percent
from advisor.rules.memory import reduce_bytes
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 0.5


@rule("PAR113", "embeddings-dominate")
def check(case: Case) -> Iterator[Finding]:
    plan, job = case.plan, case.job
    if plan is None or job is None or job.architecture is None or plan.ranks == 1:
        return
    arch = job.architecture
    tables = 1 if arch.tied_embeddings else 2
    embedded = tables * arch.vocab * arch.hidden
    if embedded <= SHARE * job.params or job.trainable_params < job.params:
        return
    sent = reduce_bytes(plan) * embedded
    tying = "tie the embedding and the head, or " if tables == 2 else ""
    yield Finding(
        code="PAR113",
        name="embeddings-dominate",
        severity="info",
        message=(
            f"{'embedding and head' if tables == 2 else 'the tied embedding'} ({arch.vocab} words) "
            f"{'hold' if tables == 2 else 'holds'} {count(embedded)} of {count(job.params)} parameters "
            f"({percent(embedded / job.params)}): {memory(sent)} of the gradients that each step reduces"
        ),
        facts={"embedded": embedded, "params": job.params, "gradient_bytes": sent},
        remedy=f"{tying}take a smaller vocabulary",
    )
