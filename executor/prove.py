"""Before a plain script is run on several ranks: its first steps there against the same steps in one process.

Both are trials, with the same data and the same random numbers; nothing of the user's is written. Dropout, mixed
precision and compilation are off in both, so that small differences tell.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from advisor.executor.console import say
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch, plain_environment
from advisor.executor.own_modules import own_modules
from advisor.executor.proof import WHOLE, Loss, Proof, difference, proof_of
from advisor.executor.records import ProofStep, read_ranks
from advisor.executor.script_counts import counted
from advisor.executor.script_imports import packages_of
from advisor.executor.trials import Request, Trials, trials_of
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

Steps = Callable[[Plan, Loss], tuple[ProofStep, ...]]
STEPS = 5
SECONDS = 600.0  # for each of the two
SUMS = 0.05  # how near the norms' ratio must be to the ranks, for a loss to be taken as a sum over samples
BY_FORCE = "or start without this proof, at your own risk: --unchecked"
WHY = (
    "the loss of a batch is not the mean of those of its slices (samples compared with one another, as in contrastive "
    "and triplet losses, or a mean over something else than samples), or a step depends on more than its batch"
)


def prove(
    plan: Plan, script: str, arguments: Sequence[str], folder: Path, launch_of: Callable[[Plan, RunFolder], Launch]
) -> Proof:
    """Return what the proof said; raise an AdvisorError where it fails or can't be made."""
    launch = launch_of(plan, RunFolder(folder / "00"))
    launcher = replace(plan.launcher, nproc_per_node=1)
    alone = replace(plan, gpus=plan.gpus[:1], strategy="single", launcher=launcher)
    with trials_of(script, arguments, folder, launch) as trials:
        trials.preload(packages_of(script))
        steps = functools.partial(_steps, trials, script, launch_of)
        one = steps(alone, "whole")
        first = counted(own_modules(Path(script)))
        if first is not None:
            say(f"it takes more than losses from training batches ({first.file}, line {first.line}): whole ones first")
            if (proof := _by_calls(plan, one, steps)) is not None:
                return proof
        try:
            proof, reads = _by_slices(plan, script, one, steps)
        except AdvisorError as refusal:
            if first is None:
                say(f"{_shortened(refusal)}; trying whole batches, with each call of a model divided")
                if (proof := _by_calls(plan, one, steps)) is not None:
                    return proof
            raise
        if first is None and reads:
            say(f"it reads numbers that differ between slices{reads}: whole batches are tried as well")
            return _by_calls(plan, one, steps) or proof
        return proof


def _by_calls(plan: Plan, one: tuple[ProofStep, ...], steps: Steps) -> Proof | None:
    """Compare ranks that have whole batches and divide the calls of models; None where no way of that is equal."""
    for loss in WHOLE:
        with contextlib.suppress(AdvisorError):
            many = steps(plan, loss)
            if difference(one, many) is None:
                return proof_of(one, many, loss)
    return None


def _by_slices(plan: Plan, script: str, one: tuple[ProofStep, ...], steps: Steps) -> tuple[Proof, str]:
    """Compare ranks that load their slices; return also where a number is read that differs between them."""
    many = steps(plan, "mean")
    reads = next((step.reads for step in many if step.reads), "")
    ratio = one[0].norm / many[0].norm if many[0].norm else 0.0
    if difference(one, many) is not None and abs(ratio / plan.ranks - 1) < SUMS:
        sums = steps(plan, "sum")
        if difference(one, sums) is None:
            return proof_of(one, sums, "sum"), reads
    found = difference(one, many)
    if found is not None:
        what = f"{script} would train differently on {plan.ranks} ranks{one[0].where}: {found}; {WHY}"
        raise AdvisorError(what, f"train it on one GPU: --gpus 1; {BY_FORCE}")
    return proof_of(one, many, "mean"), reads


def _shortened(refusal: AdvisorError) -> str:
    return str(refusal).partition("; ")[0]


def _steps(
    trials: Trials, script: str, launch_of: Callable[[Plan, RunFolder], Launch], plan: Plan, loss: Loss
) -> tuple[ProofStep, ...]:
    """Run the first steps, and return what rank 0 noted of each."""
    env = plain_environment(seed=0, proof=True, matched=True, loss=loss)
    request = Request(plan=plan, purpose="as-is", steps=STEPS, limit=SECONDS, env=env)
    trial, folder = trials.run(request, launch_of)
    ranks = read_ranks(folder.ranks)
    steps = ranks[0].proof if ranks else ()
    where = "as it is" if plan.ranks == 1 else f"on {plan.ranks} ranks"
    if trial.outcome in ("failed", "out-of-memory", "too-long", "wants-to-write"):
        raise AdvisorError(
            f"{script} can't be trained {where}: {trial.said}", f"train it as it is: --gpus 1; {BY_FORCE}"
        )
    if not steps:
        what = f"{script} made no optimizer step in a trial {where}, so nothing tells whether it would train the same"
        raise AdvisorError(what, f"train it as it is: --gpus 1; {BY_FORCE}")
    return steps
