"""What was measured on a machine, in place of data sheets: collectives of groups of GPUs, copies, and steps."""

from msgspec.structs import replace

from advisor.rules.device import Device
from advisor.rules.fabric import Collective, Op, bus_factor
from advisor.rules.machine import Value
from advisor.rules.plan import Correction, Predicted

# Relative uncertainty of a prediction from measurements: nine of ten measured rows lie inside (docs/accuracy.md);
# repeated steps alone differ by 4 %.
LEFT_OVER = 0.12


class Floor(Value, frozen=True, kw_only=True):
    """One process's optimizer step of one micro-batch, without any communication."""

    micro_batch: int
    seconds: float


class MeasuredGroup(Value, frozen=True, kw_only=True):
    """What collectives cost these GPUs on each of `nodes` hosts while `concurrent` equal groups run at once."""

    gpus: tuple[str, ...]
    nodes: int = 1
    concurrent: int = 1
    collectives: dict[Op, Collective]

    @property
    def key(self) -> tuple[frozenset[str], int, int]:
        return frozenset(self.gpus), self.nodes, self.concurrent


class HostCopies(Value, frozen=True, kw_only=True):
    """Copies between host memory and each GPU, all GPUs at once: the slowest GPU."""

    to_gpu: float  # bytes per second
    from_gpu: float  # bytes per second

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second of as many bytes each way, one after the other."""
        return 2 / (1 / self.to_gpu + 1 / self.from_gpu)


class Calibration(Value, frozen=True, kw_only=True):
    floors: tuple[Floor, ...] = ()
    groups: tuple[MeasuredGroup, ...] = ()
    host_copies: HostCopies | None = None
    correction: Correction | None = None  # of the models, by earlier runs; measured steps of the job itself beat it

    def floor(self, micro_batch: int) -> Floor | None:
        """Return the floor of the nearest micro-batch; None without any."""
        return min(self.floors, key=lambda floor: abs(floor.micro_batch - micro_batch), default=None)

    def group(self, gpus: tuple[str, ...], nodes: int, concurrent: int) -> dict[Op, Collective]:
        """Return what was measured of a group; nothing where it was not."""
        key = frozenset(gpus), nodes, concurrent
        return next((group.collectives for group in self.groups if group.key == key), {})


def measured_collective(op: Op, ranks: int, points: list[tuple[float, float]]) -> Collective:
    """Return the cost of a collective from measured (bytes, seconds).

    Its latency is the shortest time, its bandwidth that of the largest size.
    """
    curve = tuple(sorted(points))
    size, seconds = curve[-1]
    return Collective(
        latency=min(seconds for _, seconds in curve),
        bus_bandwidth=bus_factor(op, ranks) * size / seconds,
        source="measured",
        curve=curve,
    )


def scaled(device: Device, factor: float) -> Device:
    """Return a device that is slower by the factor in all it does, as a measured step showed."""
    rates = ("matmul", "attention", "convolution", "elementwise", "batch_norm", "streaming")
    return replace(
        device,
        **{name: getattr(device, name) / factor for name in rates},
        kernel_seconds=device.kernel_seconds * factor,
        launch_seconds=device.launch_seconds * factor,
        source="measured",
        uncertainty=LEFT_OVER,
    )


def corrected(predicted: Predicted, correction: Correction) -> Predicted:
    """Return a prediction whose times are multiplied by what earlier runs needed of the predicted step time.

    The whole step is, compute and communication alike: a step does not tell which of them the models get wrong.
    """
    factor = correction.factor
    step, low = factor * predicted.step_seconds, 1 - predicted.step_seconds_range[0] / predicted.step_seconds
    uncertainty = max(LEFT_OVER, correction.spread, low / (1 + correction.scripts))
    return replace(
        predicted,
        step_seconds=step,
        step_seconds_range=(step / (1 + uncertainty), step * (1 + uncertainty)),
        compute_seconds=factor * predicted.compute_seconds,
        communication_seconds=factor * predicted.communication_seconds,
        exposed_communication_seconds=factor * predicted.exposed_communication_seconds,
        samples_per_second=predicted.samples_per_second / factor,
        tokens_per_second=predicted.tokens_per_second / factor,
        source="measured",
        correction=correction,
    )
