"""What was measured on a machine, in place of data sheets: collectives, and steps of the job without communication."""

from msgspec import field
from msgspec.structs import replace

from advisor.rules.device import Device
from advisor.rules.fabric import Collective, Op, bus_factor
from advisor.rules.machine import Value

# Relative uncertainty of a prediction from measurements: nine of ten measured rows lie inside (docs/accuracy.md);
# repeated steps alone differ by 4 %.
LEFT_OVER = 0.12


class Floor(Value, frozen=True, kw_only=True):
    """One process's optimizer step of one micro-batch, without any communication."""

    micro_batch: int
    seconds: float


class Calibration(Value, frozen=True, kw_only=True):
    floors: tuple[Floor, ...] = ()
    collectives: dict[Op, Collective] = field(default_factory=dict)  # over all GPUs

    def floor(self, micro_batch: int) -> Floor | None:
        """Return the floor of the nearest micro-batch; None without any."""
        return min(self.floors, key=lambda floor: abs(floor.micro_batch - micro_batch), default=None)


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
