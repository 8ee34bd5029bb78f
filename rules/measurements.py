"""What was measured on one machine and is kept: its links, and how far off the predictions of real runs were."""

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec.structs import replace

from advisor.rules.calibration import Calibration, HostCopies, MeasuredGroup, measured_collective
from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Collective, Fabric, Op, collectives_of
from advisor.rules.format import ids, plural
from advisor.rules.identity import Identity
from advisor.rules.machine import Machine, Unknown, Value
from advisor.rules.plan import Assumption, Correction

VERSION = 1
KEPT_RUNS = 20


class Links(Value, frozen=True, kw_only=True):
    """Links of one kind of device, as one session measured them."""

    date: str  # ISO 8601 with offset
    seconds: float  # that it took
    groups: tuple[MeasuredGroup, ...] = ()
    host_copies: HostCopies | None = None
    failed: tuple[Unknown, ...] = ()  # what could not be measured, and why

    @property
    def day(self) -> str:
        return self.date[:10]


class RunRatio(Value, frozen=True, kw_only=True):
    """A real run whose step the models had predicted."""

    date: str  # ISO 8601 with offset
    script: str  # its name
    strategy: str
    device: str  # model of the GPU, or "cpu"
    ratio: float  # seconds of a step, measured by predicted without any correction
    links: str | None = None  # date of the measured links in that prediction


class Measurements(Value, frozen=True, kw_only=True):
    """What a file of the store holds."""

    version: int = VERSION
    identity: Identity
    links: Links | None = None
    runs: tuple[RunRatio, ...] = ()  # the latest last


def device_kind(machine: Machine, gpu_id: str) -> str:
    """Name the kind of a device: predictions of others are wrong in other ways."""
    gpu = machine.gpu(gpu_id)
    return "cpu" if is_cpu(gpu) else gpu.name or "unnamed GPU"


def calibration_of(kept: Measurements | None, device: str) -> Calibration:
    """Return what was measured, for predictions of plans on one kind of device."""
    if kept is None:
        return Calibration()
    correction = correction_of(kept, device)
    if kept.links is None:
        return Calibration(correction=correction)
    return Calibration(groups=kept.links.groups, host_copies=kept.links.host_copies, correction=correction)


def correction_of(kept: Measurements, device: str) -> Correction | None:
    """Return what the runs on a kind of device say of the models; None without any.

    A run counts while the links in its prediction are those of today's: others would move the prediction themselves.
    """
    links = kept.links.date if kept.links else None
    runs = [run for run in kept.runs if run.device == device and run.links == links]
    if not runs:
        return None
    factor = median(run.ratio for run in runs)
    return Correction(
        factor=factor,
        spread=max(max(run.ratio / factor, factor / run.ratio) for run in runs) - 1,
        runs=len(runs),
        scripts=len({run.script for run in runs}),
        since=min(run.date for run in runs)[:10],
    )


def with_run(kept: Measurements, run: RunRatio) -> Measurements:
    """Add a run; the oldest ones leave."""
    return replace(kept, runs=(*kept.runs, run)[-KEPT_RUNS:])


def with_links(kept: Measurements, links: Links) -> Measurements:
    """Put new measurements in the place of older ones of the same groups; groups not measured now stay."""
    known = {group.key for group in links.groups}
    older = () if kept.links is None else tuple(group for group in kept.links.groups if group.key not in known)
    copies = links.host_copies or (kept.links.host_copies if kept.links else None)
    return replace(kept, links=replace(links, groups=(*links.groups, *older), host_copies=copies))


def collective_of(op: Op, ranks: int, points: Sequence[tuple[float, float]]) -> Collective:
    """Return the cost of a collective from times of a few sizes, (bytes, seconds), ascending.

    Fewer bytes take no longer than more, since noise only adds time; fewer than were measured take the shortest time.
    """
    curve: list[tuple[float, float]] = []
    for size, seconds in reversed(points):
        curve.append((size, min(seconds, curve[-1][1]) if curve else seconds))
    return measured_collective(op, ranks, [(0.0, curve[-1][1]), *curve])


def with_measured(fabric: Fabric, machine: Machine, links: Links) -> Fabric:
    """Return the fabric with measured collectives where there are some, over all GPUs and in groups."""
    known = Calibration(groups=links.groups)
    everything = tuple(gpu.id for gpu in machine.gpus)
    groups = tuple(
        replace(group, collectives=group.collectives | known.group(group.gpus, 1, 1)) for group in fabric.groups
    )
    measured = known.group(everything, machine.nodes, 1)
    return replace(fabric, collectives=fabric.collectives | measured, groups=groups)


class Compared(Value, frozen=True, kw_only=True):
    """One measured collective, and what the model has for it."""

    group: MeasuredGroup
    op: Op
    measured: Collective
    modelled: Collective | None  # None: a bandwidth is not known


def compared(machine: Machine, links: Links) -> Iterator[Compared]:
    """Set each measured collective beside the model's."""
    for group in links.groups:
        try:
            model = collectives_of(machine, group.gpus, nodes=group.nodes, concurrent=group.concurrent)
        except AdvisorError:
            model = {}
        for op, measured in group.collectives.items():
            yield Compared(group=group, op=op, measured=measured, modelled=model.get(op))


def said_of(kept: Measurements | None, calibration: Calibration) -> Iterator[Assumption]:
    """Say which measurements a prediction rests on, and since when."""
    if kept is not None and kept.links is not None and calibration.groups:
        why = f"over {'; '.join(ids(group.gpus) for group in calibration.groups)}, in place of the model's"
        yield Assumption(what="collectives", value=f"measured {kept.links.day}", why=why)
    if calibration.correction is not None:
        yield correction_in_words(calibration.correction)


def correction_in_words(correction: Correction) -> Assumption:
    """Say what earlier runs make of predicted times."""
    runs = f"{plural(correction.runs, 'run')} since {correction.since}" if correction.runs > 1 else correction.since
    why = f"so much longer than the models have it did a step take on this machine: median of {runs}"
    if correction.runs == 1:
        why = f"so much longer than the models have it did a step take in a run of {runs}"
    return Assumption(what="step times", value=f"x {correction.factor:.2f}", why=why)
