"""How far more GPUs help: the best plan of each size, and what a global batch that suits more of them would change."""

import math
from collections.abc import Sequence

from advisor.rules.format import plural
from advisor.rules.job import Job
from advisor.rules.machine import Machine
from advisor.rules.plan import Assumption, Candidate, Scale

HELPS = 0.05  # more samples per second that a larger size must give: less is within what repeated steps differ by
HOUR = 3600.0
LEAST_BATCH = 0.5  # of the global batch: a smaller one is no suggestion


def scaling_of(fitting: Sequence[Candidate], chosen: Candidate | None, machine: Machine) -> tuple[Scale, ...]:
    """Return the best of the plans that fit for each number of GPUs, the fewest first; of its own size the chosen one.

    The efficiency is samples per second and GPU against the smallest size that fits. Hosts are paid whole.
    """
    best: dict[int, Candidate] = {}
    for candidate in sorted(fitting, key=lambda c: (c is not chosen, c.predicted.step_seconds)):
        best.setdefault(candidate.plan.ranks, candidate)
    scales: list[Scale] = []
    for ranks, candidate in sorted(best.items()):
        plan, rate = candidate.plan, candidate.predicted.samples_per_second
        first = scales[0] if scales else None
        fastest = max((scale.samples_per_second for scale in scales), default=None)
        scales.append(
            Scale(
                gpus=len(plan.gpus),
                nodes=plan.nodes,
                strategy=plan.strategy,
                step_seconds=candidate.predicted.step_seconds,
                samples_per_second=rate,
                efficiency=rate / ranks / (first.samples_per_second / first.ranks) if first else 1.0,
                gain=None if fastest is None else rate / fastest - 1,
                dollars_per_million_samples=dollars(machine, plan.nodes, rate),
            )
        )
    return tuple(scales)


def dollars(machine: Machine, nodes: int, samples_per_second: float) -> float | None:
    """Return what a million samples cost on whole hosts: price x hosts x 1e6 / rate / 3600. None without a price.

    Example: 2 hosts at 10 dollars an hour, 100 samples per second: 10 x 2 x 1e6 / 100 / 3600 = 55.6 dollars.
    """
    if machine.price is None:
        return None
    return machine.price.dollars_per_hour * nodes * 1e6 / samples_per_second / HOUR


def enough(scales: Sequence[Scale]) -> Scale | None:
    """Return the smallest size that no larger one beats by `HELPS` or more; None without sizes."""
    for index, scale in enumerate(scales):
        if all(more.samples_per_second < (1 + HELPS) * scale.samples_per_second for more in scales[index + 1 :]):
            return scale
    return None


def left_out_for_the_batch(job: Job, machine: Machine) -> tuple[Assumption, ...]:
    """Tell that the global batch is kept, where it can't be split over all GPUs, and which other batches could."""
    ranks = len(machine.gpus) * machine.nodes
    if job.global_batch % (ranks * (job.micro_batch or 1)) == 0:
        return ()
    why = f"it can't be split evenly over all {plural(ranks, 'rank')}; {batch_advice(job, machine)} can"
    return (Assumption(what="global batch", value=f"{job.global_batch}, kept", why=why),)


def batch_advice(job: Job, machine: Machine) -> str:
    """Say which global batches all GPUs can share evenly, and what they ask of the learning rate."""
    unit = len(machine.gpus) * machine.nodes * (job.micro_batch or 1)
    above = math.ceil(job.global_batch / unit) * unit
    near = [batch for batch in (above - unit, above) if batch >= LEAST_BATCH * job.global_batch]
    return f"--global-batch {' or '.join(f'{batch} ({learning_rate(job, batch)})' for batch in near)}"


def learning_rate(job: Job, batch: int) -> str:
    """Say what another global batch does to the learning rate: linear for SGD, the square root for Adam and its like.

    Goyal et al., https://arxiv.org/abs/1706.02677; Malladi et al., https://arxiv.org/abs/2205.10287.
    """
    ratio = batch / job.global_batch
    if job.optimizer in ("sgd", "sgd-momentum"):
        return f"learning rate x {ratio:.3g}, with a warm-up"
    return f"learning rate x {math.sqrt(ratio):.3g}"
