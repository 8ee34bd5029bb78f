"""A large part of the model is gathered at once, so sharding hides little and saves little.

## What it finds
A sharded plan for a model whose largest part that FSDP gathers at once (a block, or all that is in no block) holds more
than 40 % of the parameters. Of decoders only the blocks are judged; for their embeddings see PAR113.

## Why it matters
FSDP gathers one part while it computes the one before. With one huge part nothing runs beside its gather, and the
unsharded weights and gradients of that part stand in memory at once: 12 bytes per parameter.

## What to do
Call `fully_shard` on more and smaller modules, blocks before the model itself; an embedding and a head can each be a
part of their own.

## Source
torch.distributed.fsdp.fully_shard, "communication groups"; https://github.com/allenai/OLMo/issues/762
"""

from collections.abc import Iterator

from advisor.rules.decoder import decoder_profile
from advisor.rules.format import count, memory, percent
from advisor.rules.job import Job
from advisor.rules.memory import gather_bytes, root_params
from advisor.rules.plan import Finding
from advisor.rules.profile import Profile
from advisor.rules.rule import Case, rule

SHARE = 0.4


@rule("PAR110", "few-blocks-to-shard")
def check(case: Case) -> Iterator[Finding]:
    plan, job = case.plan, case.job
    if plan is None or job is None or plan.strategy not in ("fsdp", "hsdp"):
        return
    profile = _profile(job)
    if profile is None or not profile.params:
        return
    blocks = [unit for unit in profile.units if unit.kind == "block"]
    largest = max((unit.params for unit in blocks), default=0)
    root = 0 if job.architecture else root_params(profile)
    part, what = (root, "all that is in no block") if root >= largest else (largest, "the largest block")
    if part < SHARE * profile.params:
        return
    number = sum(unit.count for unit in blocks)
    gathered = gather_bytes(plan) * part
    yield Finding(
        code="PAR110",
        name="few-blocks-to-shard",
        severity="info",
        message=(
            f"{what} holds {count(part)} of {count(profile.params)} parameters ({percent(part / profile.params)}, "
            f"{number} blocks in all): FSDP gathers {memory(gathered)} at once, with nothing beside it to hide that"
        ),
        facts={"part": part, "params": profile.params, "blocks": number, "gathered": gathered},
        remedy="call fully_shard on smaller modules: the layers of a block, the embedding and the head each on its own",
    )


def _profile(job: Job) -> Profile | None:
    if job.profiles:
        return job.profiles[0]
    return None if job.architecture is None else decoder_profile(job, "bf16-params")
