"""Six questions to ask before tuning anything, in this order; each answered with the numbers of a plan.

The order is what an engineer learnt who lost five days to DataParallel, tiny buckets, FSDP on slow PCIe and NCCL
variables set blindly: most of it can be known from the links and the sizes before anything runs.
"""

from collections.abc import Callable, Iterator
from inspect import getdoc
from math import ceil
from typing import NamedTuple

from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Collective, Op, bus_factor, collective_seconds, collectives_of
from advisor.rules.format import bandwidth, count, ids, memory, percent, plural, seconds
from advisor.rules.machine import Machine, Value
from advisor.rules.memory import reduce_bytes, states
from advisor.rules.plan import Plan, Predicted, Recommendation
from advisor.rules.recommend import assume_missing
from advisor.rules.topology import islands, slowest_link

DEFAULT_CAP_MB = 25.0  # MiB, of DistributedDataParallel
BUCKETS_MB = (1.0, DEFAULT_CAP_MB, 100.0)
MUCH = 0.2  # of a step; communication above this is worth work


class Answered(Value, frozen=True, kw_only=True):
    """One question and what this machine, job and plan say to it."""

    title: str
    question: str
    answers: tuple[str, ...]


class Checklist(Value, frozen=True, kw_only=True):
    version: int = 1
    summary: str
    items: tuple[Answered, ...]


class Subject(NamedTuple):
    """What the questions are asked of."""

    recommendation: Recommendation
    machine: Machine
    plan: Plan
    predicted: Predicted
    collectives: dict[Op, Collective]
    gradients: float  # bytes that all ranks reduce in a step


class Item(NamedTuple):
    title: str
    question: str
    answers: Callable[[Subject], Iterator[str]]  # its docstring says why one asks


def checklist_of(recommendation: Recommendation, machine: Machine) -> Checklist:
    """Answer all questions; raises AdvisorError where there is no plan to answer from."""
    plan, predicted = recommendation.plan, recommendation.predicted
    if plan is None or predicted is None:
        raise AdvisorError(
            f"there is no plan to answer from: {recommendation.summary}", "leave --checklist out to see what would fit"
        )
    known, _ = assume_missing(machine)
    subject = Subject(
        recommendation=recommendation,
        machine=known,
        plan=plan,
        predicted=predicted,
        collectives=collectives_of(known, plan.gpus, nodes=plan.nodes),
        gradients=float(reduce_bytes(plan) * recommendation.job.trainable_params),
    )
    items = (Answered(title=i.title, question=i.question, answers=tuple(i.answers(subject))) for i in ITEMS)
    return Checklist(summary=recommendation.summary, items=tuple(items))


def page() -> str:
    """Return the page that `advisor explain checklist` prints and docs/checklist.md holds."""
    parts = [
        f"## {number}. {item.title}\n{item.question}\n\n{getdoc(item.answers)}" for number, item in enumerate(ITEMS, 1)
    ]
    intro = (__doc__ or "").strip()
    how = "`advisor recommend --params N --checklist` answers each with the numbers of your machine and job."
    return "\n\n".join([intro, how, *parts])


def bound(subject: Subject) -> Iterator[str]:
    """If what communication does not hide is a few per cent of the step, no setting of NCCL, bucket size or strategy
    can gain more than that. Find it out before changing anything: the same step on one GPU, or the profiler's timeline.
    """
    cost = subject.predicted
    share = cost.exposed_communication_seconds / cost.step_seconds
    yield (
        f"a step of {seconds(cost.step_seconds)} computes for {seconds(cost.compute_seconds)} and communicates for "
        f"{seconds(cost.communication_seconds)}, of which {seconds(cost.exposed_communication_seconds)} are not hidden"
    )
    if subject.plan.ranks == 1:
        yield "one process: nothing is communicated"
    elif share > MUCH:
        yield f"communication takes {percent(share)} of the step: work on it first"
    else:
        yield f"communication takes {percent(share)} of the step: the GPUs decide, settings of NCCL can gain no more"


def buckets(subject: Subject) -> Iterator[str]:
    """DDP reduces gradients in buckets while the backward pass runs. Tiny ones (1 MiB) pay the start of a collective
    hundreds of times, huge ones begin late and leave the last one uncovered. The default of 25 MiB is good on most
    machines; it is one argument, `bucket_cap_mb`, and so the cheapest thing to try.
    """
    plan, ranks = subject.plan, subject.plan.ranks
    if ranks == 1:
        yield "one process: no buckets"
        return
    for cap in BUCKETS_MB:
        size = min(cap * 2**20, subject.gradients)
        pieces = ceil(subject.gradients / size)
        each = collective_seconds(subject.collectives["all_reduce"], "all_reduce", size, ranks)
        yield (
            f"{cap:g} MiB: {plural(pieces, 'bucket')} for {memory(subject.gradients)} of gradients, "
            f"{seconds(each)} each, {seconds(pieces * each)} together"
        )
    if plan.strategy != "ddp":
        yield f"the plan is {plan.strategy.upper()}, which gathers and reduces block by block: it has no buckets"
    elif plan.bucket_cap_mb is None:
        yield f"the plan keeps DDP's own {DEFAULT_CAP_MB:g} MiB: no other size gains enough"
    else:
        yield f"the plan sets {plan.bucket_cap_mb:g} MiB"


def links(subject: Subject) -> Iterator[str]:
    """FSDP moves the weights as well: half as much again as DDP in each micro-batch, which NVLink hides and PCIe
    through host memory does not. `advisor probe` shows islands, slowest link and bandwidths. Islands of fast links in
    a slow box ask for hybrid sharding, for accumulation, or for fewer GPUs.
    """
    machine, plan = subject.machine, subject.plan
    groups = islands(machine)
    if len(groups) > 1:
        yield f"{len(groups)} islands of fast links: {'; '.join(ids(group) for group in groups)}"
    else:
        yield "all GPUs are alike to each other" if len(machine.gpus) > 1 else "one GPU: no links"
    slowest = slowest_link(machine, plan.gpus)
    if slowest is not None:
        hop = f"{slowest.a}-{slowest.b} ({slowest.code})"
        yield f"the slowest hop of the plan's ring is {hop}, {bandwidth(slowest.bandwidth)}"
    if plan.ranks > 1:
        reduce = subject.collectives["all_reduce"]
        how = "measured" if reduce.source == "measured" else "predicted from the links"
        yield f"bus bandwidth of an all-reduce: {bandwidth(reduce.bus_bandwidth)}, {how}"


def variables(subject: Subject) -> Iterator[str]:
    """NVIDIA calls most of those that forums pass on debugging variables: they may slow, hang or crash a run. A
    variable stays only where a condition of this machine asks for it, or where it won against its absence under your
    own training step here. `NCCL_DEBUG=WARN` is the one that always earns its place.
    """
    found = {name: value for name, value in subject.machine.environment.items() if name.startswith("NCCL_")}
    for name, value in found.items():
        codes = [
            f.code
            for f in subject.recommendation.findings
            if name in (f.facts.get("variable"), *f.facts.get("variables", ()))
        ]
        judged = f": see {', '.join(codes)}" if codes else ": kept"
        yield f"{name}={value} is set{judged}"
    if not found:
        yield "no NCCL variable is set here"
    for finding in subject.recommendation.findings:
        for name, value in finding.facts.get("env", {}).items():
            yield f"the plan sets {name}={value}, by {finding.code}: {finding.message}"


def launcher(subject: Subject) -> Iterator[str]:
    """`nn.DataParallel` copies the model in each step and holds one interpreter lock over all GPUs; torchrun starts one
    process for each GPU. It also sets OMP_NUM_THREADS=1, which starves data loading and CPU work unless you say more.
    """
    plan, launch = subject.plan, subject.plan.launcher
    yield (
        f"{plural(launch.nproc_per_node, 'process')} on {'each host' if plan.nodes > 1 else 'this host'}, one for each "
        f"{'GPU' if launch.device == 'cuda' else 'rank'}: torchrun or advisor apply, not python with DataParallel"
    )
    if launch.threads_per_rank is not None:
        yield f"OMP_NUM_THREADS={launch.threads_per_rank} for each; torchrun alone would set 1"
    if launch.numa_binding:
        yield "each is bound to the NUMA node of its GPU"
    else:
        yield "no binding to NUMA nodes: the machine has one, or does not say"


def theory(subject: Subject) -> Iterator[str]:
    """Weights, gradients and optimizer states are bytes per parameter; a ring all-reduce of S bytes over n ranks sends
    2(n-1)/n S over each hop (nccl-tests, doc/PERFORMANCE.md). Far above that there is something to find; near it only
    less traffic helps: accumulation, fewer ranks, smaller gradients.
    """
    job, plan = subject.recommendation.job, subject.plan
    needed = states(job, plan.shard_size)
    shared = f" over {plan.shard_size}" if plan.shard_size > 1 else ""
    yield (
        f"weights, gradients and {job.optimizer}: {count(job.trainable_params)} x "
        f"{states(job).total / job.trainable_params:.3g} B{shared} = {memory(needed.total)} of "
        f"{memory(subject.predicted.memory.available)} per rank"
    )
    if plan.ranks > 1:
        ring = subject.collectives["all_reduce"]
        factor = bus_factor("all_reduce", plan.ranks)
        least = factor * subject.gradients / ring.bus_bandwidth
        yield (
            f"a ring sends 2(n-1)/n = {factor:.3g} times {memory(subject.gradients)} of gradients over the slowest "
            f"hop: at least {seconds(least)} a step at {bandwidth(ring.bus_bandwidth)}"
        )
    micro = f"{plan.micro_batch} samples x {plural(plan.accumulation, 'pass')}"
    yield f"{micro} x {plural(plan.ranks, 'rank')} = {plan.global_batch} samples a step"


ITEMS = (
    Item(
        "Compute or communication", "Where does a step go: into the GPUs' work, or into waiting for the links?", bound
    ),
    Item("Bucket size first", "How many all-reduces is a step, and is each large enough for the links?", buckets),
    Item(
        "Look at the links before choosing a strategy",
        "Which GPUs are joined by what, and which is the slowest hop of the ring over all of them?",
        links,
    ),
    Item(
        "NCCL variables are configuration, not tuning",
        "Which variables are set, where do they come from, and which of them has a reason on this machine?",
        variables,
    ),
    Item("The launcher", "Is there one process for each GPU, with threads and memory near it?", launcher),
    Item(
        "What theory allows",
        "What is the least that memory and traffic can be, and how far from it is the plan?",
        theory,
    ),
)
