"""Plans that are worth a trial of a script that makes its own batches, beside the script as it is."""

from collections.abc import Iterator, Sequence
from math import ceil

from msgspec.structs import replace

from advisor.rules.calibration import Calibration
from advisor.rules.cost import Costs
from advisor.rules.machine import Machine, Value
from advisor.rules.observed import Observed, job_of, plan_as_run
from advisor.rules.plan import Plan, Predicted
from advisor.rules.recommend import assume_missing, demand, price, simplicity
from advisor.rules.step_time import DEFAULT_BUCKET_MIB, FIRST_BUCKET_MIB, MIB
from advisor.rules.strategies import Group, island_order, shapes

HALF_WEIGHTS = "bf16-weights"  # as --allow names it: layer norms, too, are then computed in 16 bits
TRIED_CAPS_MB = (5.0, 100.0)  # MiB; beside DDP's default of 25
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}  # of torch.autocast, as jobs name them


class Proposal(Value, frozen=True, kw_only=True):
    plan: Plan
    predicted: Predicted | None  # None: the model is not one whose cost is known by its shapes


def proposals(
    costs: Costs | None,
    machine: Machine,
    own: Plan,
    only: Sequence[str],
    *,
    gradients: int = 0,
    short_of_memory: bool = False,
) -> list[Proposal]:
    """Return the plans to try, the most promising first; what is the same as `own`, the script as it is, is left out.

    They use the GPUs of `own` and the script's own batches: a trial changes nothing that the script decides. Without
    costs, blocks are only computed again where the script as it is was `short_of_memory`. The bytes of its
    `gradients` tell which bucket caps make a difference.
    """
    if costs is None:
        plans = [*with_other_buckets(own, gradients), *unpriced(machine, own)]
        if short_of_memory:
            plans += [replace(plan, activation_checkpointing="full") for plan in (own, *plans)]
        found = [Proposal(plan=plan, predicted=None) for plan in plans]
        found.sort(key=lambda one: (demand(one.plan), simplicity(one.plan)))
    else:
        priced = [c.plan for c in price(costs, only, len(own.gpus), 1) if set(c.plan.gpus) == set(own.gpus)]
        priced = [replace(in_own_precision(plan, costs.job.allow), env=own.env) for plan in priced]
        plans = [other for plan in priced for other in with_other_buckets(plan, gradients)]
        found = [Proposal(plan=plan, predicted=costs.predict(plan, costs.memory(plan))) for plan in plans]
        found = [one for one in found if one.predicted is not None and one.predicted.memory.fits]
        found.sort(key=lambda one: one.predicted.step_seconds if one.predicted else 0.0)
    return [one for one in found if not same_run(one.plan, own) and (not only or one.plan.strategy in only)]


def in_own_precision(plan: Plan, allow: Sequence[str]) -> Plan:
    """Leave weights in 32 bits, as the script has them under autocast, unless 16 are allowed."""
    keeps = plan.precision == "bf16-params" and HALF_WEIGHTS not in allow
    return replace(plan, precision="bf16-autocast") if keeps else plan


def with_other_buckets(plan: Plan, gradients: int) -> Iterator[Plan]:
    """Yield a plan and, of DDP, the same with other numbers of buckets: on a machine only a trial tells them apart."""
    yield plan
    known = {buckets(plan.bucket_cap_mb, gradients)}
    for cap in (None, *TRIED_CAPS_MB) if plan.strategy == "ddp" else ():
        if (number := buckets(cap, gradients)) not in known:
            known.add(number)
            yield replace(plan, bucket_cap_mb=cap)


def buckets(cap_mb: float | None, gradients: int) -> int:
    """Return about how many buckets DDP fills with so many bytes of gradients."""
    first, cap = (FIRST_BUCKET_MIB, DEFAULT_BUCKET_MIB) if cap_mb is None else (cap_mb, cap_mb)
    return 1 + max(0, ceil((gradients / MIB - first) / cap))


def unpriced(machine: Machine, own: Plan) -> Iterator[Plan]:
    """Yield each way to shard, the batch and precision left to the script."""
    for shape in shapes(machine, Group(own.gpus, 1), offload=False):
        if shape.strategy in ("fsdp", "hsdp") and shape.sync_each_micro_batch:
            gpus = island_order(machine, own.gpus) if shape.strategy == "hsdp" else own.gpus
            yield replace(
                own,
                gpus=gpus,
                strategy=shape.strategy,
                shard_size=shape.shard_size,
                reshard_after_forward=shape.reshard_after_forward,
                sync_each_micro_batch=True,
            )


def same_run(one: Plan, own: Plan) -> bool:
    """Say whether a plan changes nothing of the script as it is; its batch and precision only describe that."""
    described = {"micro_batch", "global_batch", "precision", "launcher", "accumulation", "sync_each_micro_batch"}
    changed = {name for name in Plan.__struct_fields__ if getattr(one, name) != getattr(own, name)}
    return one.accumulation == own.accumulation and changed <= described


def costs_of(
    observed: Observed | None, machine: Machine, own: Plan, allow: Sequence[str], calibration: Calibration | None = None
) -> Costs | None:
    """Return what prices plans of the job that a script turned out to be; None for a model of another kind."""
    job = None if observed is None else job_of(observed, own.ranks)
    if job is None or observed is None:
        return None
    precision = PRECISIONS.get(observed.autocast or "", "fp32")
    known, _ = assume_missing(machine)
    return Costs(replace(job, precision=precision, allow=tuple(allow)), known, calibration)


def predicted_as_run(
    plan: Plan, observed: Observed, machine: Machine, calibration: Calibration | None
) -> Predicted | None:
    """Predict a plan for the model and batch that a script turned out to have; None for a model of another kind."""
    job = job_of(observed, plan.ranks)
    if job is None:
        return None
    known, _ = assume_missing(machine)
    costs = Costs(job, known, calibration)
    as_run = plan_as_run(plan, job, observed)
    return costs.predict(as_run, costs.memory(as_run))
