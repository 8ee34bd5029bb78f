"""The choice: price every useful plan, take the fastest that fits, and say with a number why not the others."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from advisor.rules.calibration import Calibration
from advisor.rules.catalog import RULES
from advisor.rules.cost import Costs
from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.device import ASSUMED_FLOPS, ASSUMED_MEMORY_BANDWIDTH
from advisor.rules.errors import AdvisorError
from advisor.rules.format import bandwidth, count, memory, percent, plural, seconds, seconds_range
from advisor.rules.hardware import gpu_model
from advisor.rules.job import Job
from advisor.rules.links import ASSUMED_NVLINK_RATE, ASSUMED_PCIE, with_assumed_bandwidths
from advisor.rules.machine import Machine
from advisor.rules.memory import states
from advisor.rules.plan import Assumption, Candidate, Checkpointing, Finding, Memory, Plan, Recommendation
from advisor.rules.rule import Case, Rule, run_rules
from advisor.rules.scaling import batch_advice, left_out_for_the_batch, scaling_of
from advisor.rules.strategies import BUCKET_CAPS_MB, Group, Shape, micro_batches, plans, shapes, useful_groups
from advisor.rules.transport import ASSUMED_RDMA, assumed_ethernet
from advisor.rules.visible_devices import for_planning

# Plans nearer than this are equal: one configuration repeated on one machine differs by about 4 %; unmeasured, the
# models can't order strategies that differ by less than 10 %.
TIE, TIE_UNMEASURED = 0.05, 0.1
BUCKET_GAIN = 0.03  # a bucket cap other than DDP's default, or 16 bits for gradients, must gain this much
HALF_GRADIENTS = "bf16-gradients"  # as --allow names it
TRIED_MICRO_BATCHES = 3  # the largest that fit; smaller ones only add launches and transfers
# Selective is priced last, and only where recomputing all blocks is faster than none: where that is what fits.
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "full", "selective")
SIMPLICITY = ("single", "ddp", "fsdp", "hsdp")


def recommend(
    job: Job,
    machine: Machine,
    *,
    only: Sequence[str] = (),
    gpus: int | None = None,
    nodes: int | None = None,
    assumptions: Sequence[Assumption] = (),
    rules: Sequence[Rule] = RULES,
    calibration: Calibration | None = None,
) -> Recommendation:
    """Choose a plan for the job on the machine, or say by how much nothing fits and what would.

    `only` keeps the named strategies; `gpus` (per host) and `nodes` fix the group; `rules` judge the plan;
    `calibration` is what was measured on the machine. Raises AdvisorError where the machine lacks what is needed, or
    no group can split the global batch.
    """
    machine, seen = for_planning(machine)
    check_machine(machine, gpus, nodes)
    machine, guesses = assume_missing(machine)
    guesses = (*seen, *guesses)
    candidates = list(price(Costs(job, machine, calibration), only, gpus, nodes))
    if not candidates:
        raise AdvisorError(
            f"a global batch of {job.global_batch} can't be split evenly over the ranks asked for",
            f"give {batch_advice(job, asked_for(machine, gpus, nodes))}",
        )
    fitting = [c for c in candidates if fits(c)]
    chosen = choose(fitting)
    judged = tuple(sorted((judge(c, chosen) for c in candidates), key=_order))
    plan = chosen.plan if chosen else None
    predicted = chosen.predicted if chosen else None
    if plan and plan.cpu_offload and predicted and predicted.memory.host_available is None:
        value = f"{memory(predicted.memory.host)} per rank"
        guesses = (*guesses, Assumption(what="host memory", value=value, why="how much the host has is not known"))
    guesses = (*guesses, *left_out_for_the_batch(job, asked_for(machine, gpus, nodes)))
    case = Case(machine=machine, job=job, plan=plan, predicted=predicted, candidates=judged)
    findings = run_rules(rules, case)
    return Recommendation(
        verdict="fits" if chosen else "does-not-fit",
        summary=summary_of(chosen) if chosen else shortfall(job, judged),
        job=replace(job, profiles=()),
        plan=with_environment(plan, findings) if plan else None,
        predicted=predicted,
        command="advisor apply --plan plan.json train.py" if chosen else "",
        candidates=judged,
        scaling=scaling_of(fitting, chosen, machine),
        findings=findings,
        assumptions=(*assumptions, *guesses),
    )


def check_machine(machine: Machine, gpus: int | None, nodes: int | None) -> None:
    """Raise an AdvisorError unless the machine has the GPUs asked for and says how much memory they have."""
    check_group(machine, gpus, nodes)
    if any(gpu.memory is None for gpu in machine.gpus):
        raise AdvisorError(
            f"{machine.source} does not say how much memory its GPUs have",
            "add --gpu NAME (for example --gpu a10g) or --gpu-memory 24GB",
        )


def assume_missing(machine: Machine) -> tuple[Machine, tuple[Assumption, ...]]:
    """Return the machine with what the models need and the source lacks, and what was assumed for it."""
    guesses = []
    known = with_assumed_bandwidths(machine)
    if known != machine:
        value = f"PCIe {bandwidth(ASSUMED_PCIE)}, {bandwidth(ASSUMED_NVLINK_RATE)} per NVLink"
        guesses.append(Assumption(what="link bandwidths", value=value, why="the source names no GPU; add --gpu NAME"))
    unnamed = [gpu for gpu in machine.gpus if not is_cpu(gpu) and (gpu.name is None or gpu_model(gpu.name) is None)]
    if unnamed:
        value = f"{ASSUMED_FLOPS / 1e12:.0f} TFLOP/s, {bandwidth(ASSUMED_MEMORY_BANDWIDTH)}"
        why = f"no data sheet here is for {unnamed[0].name or 'a GPU without a name'}; add --gpu NAME"
        guesses.append(Assumption(what="GPU speed", value=value, why=why))
    if machine.nodes > 1 and not any(nic.bandwidth for nic in machine.nics):
        rdma = any(nic.kind != "ethernet" for nic in machine.nics)
        value = f"{bandwidth(ASSUMED_RDMA if rdma else assumed_ethernet(machine))} per adapter between hosts"
        why = "the source tells no adapter's rate; say it, for example --machine '2x8 h100 nvswitch, ib 400'"
        guesses.append(Assumption(what="network", value=value, why=why))
    return known, tuple(guesses)


def check_group(machine: Machine, gpus: int | None, nodes: int | None) -> None:
    """Raise an AdvisorError unless the machine has the GPUs and hosts asked for."""
    if not machine.gpus:
        raise AdvisorError(
            "this machine has no GPU to plan for", "give --machine, for example --machine '8x h100 nvswitch'"
        )
    if gpus is not None and not 1 <= gpus <= len(machine.gpus):
        raise AdvisorError(
            f"--gpus {gpus}, but {machine.source} has {plural(len(machine.gpus), 'GPU')}",
            f"give --gpus between 1 and {len(machine.gpus)}",
        )
    if nodes is not None and not 1 <= nodes <= machine.nodes:
        raise AdvisorError(
            f"--nodes {nodes}, but {machine.source} has {plural(machine.nodes, 'host')}",
            f"give --nodes between 1 and {machine.nodes}",
        )


def asked_for(machine: Machine, gpus: int | None, nodes: int | None) -> Machine:
    """Return the machine cut to the GPUs and hosts asked for."""
    return replace(machine, gpus=machine.gpus[:gpus], nodes=nodes or machine.nodes)


def price(costs: Costs, only: Sequence[str], gpus: int | None, nodes: int | None) -> Iterator[Candidate]:
    """Yield the best plan of each strategy on each group of GPUs, or its smallest one where none fits."""
    offload = "cpu-offload" in costs.job.allow
    for group in useful_groups(costs.machine, gpus, nodes):
        sizes = micro_batches(costs.job, group.ranks)
        kinds = [*shapes(costs.machine, group, offload=False)]
        if offload:
            kinds += shapes(costs.machine, group, offload=True)
        for shape in kinds if sizes else ():
            if not only or shape.strategy in only:
                candidate = best_of_shape(costs, group, shape, sizes)
                if candidate is not None:
                    yield candidate


def best_of_shape(costs: Costs, group: Group, shape: Shape, sizes: Sequence[int]) -> Candidate | None:
    """Return the shape's fastest plan that fits, or its smallest where none does; None where it makes no plan.

    Of plans that tie it is the fastest that recomputes nothing, else all blocks, else every second.
    """
    fitting: list[Candidate] = []
    smallest: Candidate | None = None
    for checkpointing in CHECKPOINTING:
        fastest = min(fitting, key=_step_seconds, default=None)
        if checkpointing == "selective" and (fastest is None or fastest.plan.activation_checkpointing == "none"):
            break
        tried = 0
        for plan in plans(costs.job, costs.machine, group, shape, sizes, checkpointing=checkpointing):
            needed = costs.memory(plan)
            last_resort = smallest is None or needed.total < smallest.predicted.memory.total
            if not needed.fits and (not last_resort or plan.micro_batch != sizes[-1]):
                continue
            candidate = Candidate(plan=plan, predicted=costs.predict(plan, needed))
            if fits(candidate):
                fitting.append(with_bucket(costs, with_wire(costs, candidate)))
                tried += 1
            elif last_resort:
                smallest = candidate
            if tried == TRIED_MICRO_BATCHES:
                break
    if not fitting:
        return smallest
    near = _within(fitting, TIE)
    return min(near, key=lambda c: (CHECKPOINTING.index(c.plan.activation_checkpointing), _step_seconds(c)))


def with_wire(costs: Costs, candidate: Candidate) -> Candidate:
    """Return the candidate with gradients sent in 16 bits, where that is allowed, fits and gains enough by it."""
    plan = candidate.plan
    if HALF_GRADIENTS not in costs.job.allow or plan.ranks == 1 or plan.launcher.device == "cpu":
        return candidate
    wire: Literal["bf16", "fp16"] = "fp16" if plan.precision == "fp16-autocast" else "bf16"
    half = replace(plan, gradient_dtype=wire)
    other = Candidate(plan=half, predicted=costs.predict(half, costs.memory(half)))
    gains = other.predicted.step_seconds < (1 - BUCKET_GAIN) * candidate.predicted.step_seconds
    return other if gains and fits(other) else candidate


def with_bucket(costs: Costs, candidate: Candidate) -> Candidate:
    """Return the DDP candidate with a larger bucket cap where the timeline gains enough by it, else as it is."""
    if candidate.plan.strategy != "ddp":
        return candidate
    best = candidate
    for cap in BUCKET_CAPS_MB:
        plan = replace(candidate.plan, bucket_cap_mb=cap)
        predicted = costs.predict(plan, candidate.predicted.memory)
        if predicted.step_seconds < (1 - BUCKET_GAIN) * best.predicted.step_seconds:
            best = Candidate(plan=plan, predicted=predicted)
    return best


def fits(candidate: Candidate) -> bool:
    """Say whether GPU memory suffices, and host memory as far as it is known."""
    return candidate.predicted.memory.fits


def demand(plan: Plan) -> float:
    """Order strategies by what they ask of the user and the machine.

    Over several hosts hybrid sharding asks less than full sharding: little of the network, which is known least.
    """
    hybrid = plan.strategy == "hsdp" and plan.nodes > 1
    return SIMPLICITY.index("fsdp") - 0.5 if hybrid else SIMPLICITY.index(plan.strategy)


def simplicity(plan: Plan) -> tuple[int, ...]:
    """Order plans of one strategy by their settings: wire, recomputation, buckets, resharding, reduction, batches."""
    return (
        plan.gradient_dtype != "fp32",
        ("none", "full", "selective").index(plan.activation_checkpointing),
        plan.bucket_cap_mb is not None,
        not plan.reshard_after_forward,
        plan.strategy in ("fsdp", "hsdp") and not plan.sync_each_micro_batch,
        plan.accumulation,
    )


def choose(fitting: Sequence[Candidate]) -> Candidate | None:
    """Return the fastest; of those that tie, the one with the fewest ranks, the simplest strategy and settings.

    Ranks and settings change only what is computed and sent: the models order them better than strategies.
    """
    if not fitting:
        return None
    ranks = min(c.plan.ranks for c in _within(fitting, TIE))
    near = [c for c in fitting if c.plan.ranks == ranks]
    near = _within(near, tie(near[0]))
    simplest = min(demand(c.plan) for c in near)
    alike = [c for c in near if demand(c.plan) == simplest]
    return min(_within(alike, TIE), key=lambda c: simplicity(c.plan))


def _step_seconds(candidate: Candidate) -> float:
    return candidate.predicted.step_seconds


def _within(candidates: Sequence[Candidate], share: float) -> list[Candidate]:
    """Keep those that are at most by a share slower than the fastest."""
    limit = min(c.predicted.step_seconds for c in candidates) * (1 + share)
    return [c for c in candidates if c.predicted.step_seconds <= limit]


def tie(candidate: Candidate) -> float:
    """Return by what share plans of different strategies may differ and be as good, by the source of a prediction.

    Earlier runs correct all plans alike, so they order none.
    """
    predicted = candidate.predicted
    return TIE if predicted.source == "measured" and predicted.correction is None else TIE_UNMEASURED


def judge(candidate: Candidate, chosen: Candidate | None) -> Candidate:
    """Return the candidate with the reason that rejected it; ties name themselves so."""
    needed = candidate.predicted.memory
    if not fits(candidate):
        return replace(candidate, rejected=f"needs {lacking(needed)}")
    if chosen is None or candidate is chosen:
        return candidate
    mine, best = candidate.predicted, chosen.predicted
    ratio = mine.step_seconds / best.step_seconds
    if ratio <= 1 + tie(chosen):
        return replace(candidate, rejected=f"tie: within {percent(tie(chosen))} of the plan, and less simple")
    times = f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
    reason = f"{times}x the step time: {seconds(mine.step_seconds)}"
    if mine.exposed_communication_seconds >= 0.05 * mine.step_seconds:
        reason += f", {seconds(mine.exposed_communication_seconds)} of it waiting for communication"
    return replace(candidate, rejected=reason)


def lacking(needed: Memory) -> str:
    """Say which memory is too small, with its sum: the GPU's, or the host's under offload."""
    if needed.total > needed.available:
        return f"{memory(needed.total)} per rank, {memory(needed.available)} available"
    return f"{memory(needed.host)} of host memory per rank, {memory(needed.host_available)} available"


def with_environment(plan: Plan, findings: Sequence[Finding]) -> Plan:
    """Return the plan with the settings that findings carry as `facts["env"]`: none without a rule behind it."""
    env: dict[str, str] = {}
    for finding in findings:
        env |= finding.facts.get("env", {})
    return replace(plan, env=env)


def summary_of(chosen: Candidate) -> str:
    """Say in one sentence what was chosen and what it costs."""
    plan, predicted = chosen.plan, chosen.predicted
    where = plural(len(plan.gpus), "GPU" if plan.launcher.device == "cuda" else "CPU rank")
    hosts = f" on each of {plural(plan.nodes, 'host')}" if plan.nodes > 1 else ""
    needed = predicted.memory
    return (
        f"{plan.strategy.upper() if plan.strategy != 'single' else 'One process'} on {where}{hosts}: "
        f"{memory(needed.total)} of {memory(needed.available)} per rank, "
        f"{seconds(predicted.step_seconds)} per step ({seconds_range(*predicted.step_seconds_range)})"
    )


def shortfall(job: Job, candidates: Sequence[Candidate]) -> str:
    """Say in one sentence by how much nothing fits, with the sum."""
    least = min(candidates, key=lambda c: c.predicted.memory.total)
    needed = least.predicted.memory
    whole = states(job)
    ranks = max(c.plan.shard_size for c in candidates)
    shared = f", {memory(states(job, ranks).total)} on each of {ranks} fully sharded" if ranks > 1 else ""
    return (
        f"{count(job.trainable_params)} trained parameters with {job.optimizer} have {memory(whole.total)} of states"
        f"{shared}; the smallest plan needs {lacking(needed)}"
    )


def _order(candidate: Candidate) -> tuple[int, float]:
    reason = candidate.rejected
    rank = 0 if reason is None else 1 if fits(candidate) else 2
    return rank, candidate.predicted.step_seconds if rank < 2 else float(candidate.predicted.memory.total)
