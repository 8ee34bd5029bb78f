"""The compute mode of a GPU lets one process use it, or none.

## What it finds
A GPU in mode Prohibited, or in mode Exclusive_Process.

## Why it matters
Prohibited: no CUDA program starts there. Exclusive_Process: a second process gets "all CUDA-capable devices are busy or
unavailable", as when each rank touches cuda:0 for a moment, or an evaluation runs beside the training.

## What to do
Set the mode back to Default; the MPS daemon is the one case that wants Exclusive_Process.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-modes
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

MODES: dict[str, tuple[Severity, str]] = {
    "prohibited": ("error", "no process can use it"),
    "exclusive": ("info", "a second process on the same GPU is refused"),
}


@rule("ENV125", "compute-mode-refuses-processes")
def check(case: Case) -> Iterator[Finding]:
    for word, (severity, means) in MODES.items():
        gpus = [gpu.id for gpu in gpus_of(case) if (gpu.compute_mode or "").lower().startswith(word)]
        if gpus and not (word == "exclusive" and case.machine.software.mps):
            yield Finding(
                code="ENV125",
                name="compute-mode-refuses-processes",
                severity=severity,
                message=f"the compute mode of {ids(gpus)} is {word}: {means}",
                facts={"gpus": gpus},
                remedy="sudo nvidia-smi --compute-mode=0",
            )
