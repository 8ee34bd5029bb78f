"""Nothing fits, and what is missing is what ECC takes.

## What it finds
GPUs with GDDR memory and ECC on, where not even the smallest plan fits, and would with the memory that ECC uses.

## Why it matters
On GDDR parts (A10, A40, L4, L40S, RTX A and Ada workstation cards) ECC stores its bits in the same memory and takes a
sixteenth: 24 GiB become 22.5. HBM has room of its own for them, so that there ECC costs nothing.

## What to do
Switch it off, if you may and accept that memory errors are not seen: `sudo nvidia-smi -e 0`, then reboot. Clouds often
do not allow it.

## Source
memory.total of these parts as `nvidia-smi` prints it, rules/hardware.toml: 23028 MiB of an A10G and 46068 of an L40S
are 15/16 of 24 and 48 GiB; https://docs.nvidia.com/deploy/nvidia-smi/index.html, --ecc-config
"""

from collections.abc import Iterator

from advisor.rules.format import ids, memory
from advisor.rules.machine import Gpu
from advisor.rules.memory import USABLE
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SOLD_GIB = (8, 12, 16, 20, 24, 32, 48, 96)


@rule("MEM115", "ecc-takes-what-is-missing")
def check(case: Case) -> Iterator[Finding]:
    gpus = case.machine.gpus
    if case.plan is not None or not case.candidates or not all(_loses_memory(gpu) for gpu in gpus):
        return
    taken = min((gpu.memory or 0) // 15 for gpu in gpus)
    needed = min((c.predicted.memory for c in case.candidates), key=lambda one: one.total)
    if not needed.available < needed.total <= needed.available + USABLE * taken:
        return
    yield Finding(
        code="MEM115",
        name="ecc-takes-what-is-missing",
        severity="info",
        message=(
            f"ECC takes {memory(taken)} of each of {ids([gpu.id for gpu in gpus])}; the smallest plan lacks "
            f"{memory(needed.total - needed.available)}"
        ),
        facts={"taken": taken, "needed": needed.total, "available": needed.available},
        remedy="sudo nvidia-smi -e 0, then reboot, if you accept that memory errors are not seen",
    )


def _loses_memory(gpu: Gpu) -> bool:
    """Say whether ECC is on and takes a sixteenth: then 16/15 of what is left is a size that is sold."""
    sizes = [size * 2**30 for size in SOLD_GIB]
    return bool(gpu.ecc and gpu.memory) and any(abs((gpu.memory or 0) * 16 / 15 - size) < 0.01 * size for size in sizes)
