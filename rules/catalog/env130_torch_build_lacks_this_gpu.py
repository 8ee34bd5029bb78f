"""The installed torch has no kernels for this generation of GPUs.

## What it finds
Blackwell (compute capability 10 and 12) with a torch for CUDA before 12.8; Hopper before 11.8. And GPUs that newer
builds dropped: all before Turing (7.5) with CUDA 13; before Volta (7.0) with CUDA 12.8 or 12.9 since torch 2.8; Volta
with those since torch 2.11.

## Why it matters
The first kernel ends with "no kernel image is available for execution on the device". That is certain for the wheels of
pytorch.org and for CUDA 13; a build of your own, or of NVIDIA's images, may hold more.

## What to do
Install the build that has them. For Volta, Pascal and Maxwell that is CUDA 12.6.

## Source
https://github.com/pytorch/pytorch/blob/main/RELEASE.md#pytorch-cuda-support-matrix; https://github.com/pytorch/pytorch/issues/172352
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import at_least, older

NEEDS = (("10.0", "12.8"), ("9.0", "11.8"))  # from which compute capability on, which CUDA


@rule("ENV130", "torch-build-lacks-this-gpu")
def check(case: Case) -> Iterator[Finding]:
    torch, cuda = case.machine.software.torch, case.machine.software.torch_cuda
    wheel = "+cu" in (torch or "")  # who builds torch may add or leave out kernels
    lacking: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus_of(case):
        wanted = _build(gpu.compute_capability, torch if wheel else None, cuda)
        if wanted is not None and gpu.compute_capability is not None:
            lacking.setdefault((gpu.compute_capability, wanted), []).append(gpu.id)
    for (capability, wanted), gpus in lacking.items():
        yield Finding(
            code="ENV130",
            name="torch-build-lacks-this-gpu",
            severity="error" if wheel or at_least(cuda, "13.0") else "warning",
            message=f"torch for CUDA {cuda} has no kernels for compute capability {capability} of {ids(gpus)}",
            facts={"gpus": gpus, "compute_capability": capability, "torch": torch, "torch_cuda": cuda},
            remedy=f"pip install torch --index-url https://download.pytorch.org/whl/cu{wanted.replace('.', '')}",
        )


def _build(capability: str | None, torch: str | None, cuda: str | None) -> str | None:
    """Return the CUDA of a build that has kernels for the GPU where the installed one lacks them, else None."""
    if capability is None or cuda is None:
        return None
    for least, first in NEEDS:
        if at_least(capability, least):
            return "12.8" if older(cuda, first) else None
    dropped = (
        (older(capability, "7.5") and at_least(cuda, "13.0"))
        or (older(capability, "7.0") and at_least(cuda, "12.8") and at_least(torch, "2.8"))
        or (older(capability, "7.5") and at_least(cuda, "12.8") and at_least(torch, "2.11"))
    )
    return "12.6" if dropped else None
