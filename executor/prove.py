"""Before a plain script is run on several ranks: its first steps there against the same steps in one process.

Both are trials, with the same data and the same random numbers; nothing of the user's is written. Dropout, mixed
precision and compilation are off in both, so that small differences tell.
"""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from advisor.executor.console import say
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch, plain_environment
from advisor.executor.own_modules import own_modules
from advisor.executor.proof import HOW, WHOLE, Loss, Proof, difference, proof_of, surely_equal
from advisor.executor.records import ProofStep, read_ranks
from advisor.executor.refuse import SHARDED
from advisor.executor.script_counts import counted
from advisor.executor.script_imports import packages_of
from advisor.executor.trials import Request, Trials, trials_of
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

STEPS = 5
SECONDS = 600.0  # for the one process, and at most for each comparison,
PATIENCE, START = 20.0, 60.0  # which may take so many times as long, and seconds to begin
WITHOUT_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}  # convolutions use it, of 10 bits; the libraries obey this before torch
SUMS = 0.05  # how near the norms' ratio must be to the ranks, for a loss to be taken as a sum over samples
BY_FORCE = "or start without this proof, at your own risk: --unchecked"
# What torch says of weights in shards, and what it means for a script.
MEANINGS = {
    "torch.Tensor and DTensor": "weights in shards (DTensor) meet whole tensors: the script takes a weight itself "
    "where the model is not being called, or GradScaler has gradients of both kinds, since one weight can't be divided",
    "storage of size 0": "a pass needs weights that are in shards again: they are whole while the model is called and "
    "for one backward pass through it, not for derivatives of derivatives (autograd.grad with create_graph=True)",
}
WHY = (
    "the loss of a batch is not the mean of those of its slices (samples compared with one another, as in contrastive "
    "and triplet losses, or a mean over something else than samples), or a step depends on more than its batch"
)


def prove(
    plan: Plan, script: str, arguments: Sequence[str], folder: Path, launch_of: Callable[[Plan, RunFolder], Launch]
) -> Proof:
    """Return what the proof said; raise an AdvisorError where it fails or can't be made."""
    launch = launch_of(plan, RunFolder(folder / "00"))
    say(f"comparing its first {STEPS} steps on {plan.ranks} ranks with one process, before the run")
    with trials_of(script, arguments, folder, launch) as trials:
        trials.preload(packages_of(script))
        comparison = Comparison(in_full_precision(plan), script, trials, launch_of)
        first = counted(own_modules(Path(script)))
        if first is not None:
            say(f"it takes more than losses from training batches ({first.file}, line {first.line}): whole ones first")
            if (proof := comparison.by_calls()) is not None:
                return proof
        try:
            proof, reads = comparison.by_slices()
        except AdvisorError as refusal:
            if first is None:
                say(f"{str(refusal).partition('; ')[0]}; trying whole batches, with each call of a model divided")
                if (proof := comparison.by_calls()) is not None:
                    return proof
            raise
        if first is None and reads:
            say(f"it reads numbers that differ between slices{reads}: whole batches are tried as well")
            return comparison.by_calls() or proof
        return proof


def in_full_precision(plan: Plan) -> Plan:
    """Return the plan without the lower precision that it allows, in which a small difference would not tell."""
    precision = None if plan.precision == "bf16-params" else plan.precision
    return replace(plan, precision=precision, gradient_dtype="fp32")


def otherwise(plan: Plan) -> str:
    ddp = "; or under DDP: --only ddp" if plan.strategy in SHARDED else ""
    return f"train it on one GPU: --gpus 1{ddp}; {BY_FORCE}"


class Comparison:
    """Trials of a script's first steps on all ranks, against those in one process."""

    def __init__(self, plan: Plan, script: str, trials: Trials, launch_of: Callable[[Plan, RunFolder], Launch]) -> None:
        self._plan, self._script, self._trials, self._launch_of = plan, script, trials, launch_of
        launcher = replace(plan.launcher, nproc_per_node=1)
        single = replace(plan, gpus=plan.gpus[:1], strategy="single", launcher=launcher)
        self._alone = replace(single, activation_checkpointing="none")
        self._limit = SECONDS
        started = time.monotonic()
        self._one = self._steps(self._alone, "whole")
        self._limit = min(SECONDS, START + PATIENCE * (time.monotonic() - started))

    @functools.cached_property
    def _nudged(self) -> tuple[ProofStep, ...]:
        return self._steps(self._alone, "whole", nudge=True)

    def by_calls(self) -> Proof | None:
        """Give ranks whole batches, and divide the calls of models; None where no way of that is equal."""
        for loss in WHOLE:
            try:
                many = self._steps(self._plan, loss)
                found = self._differs(many)
            except AdvisorError as refusal:
                found = str(refusal).partition("; ")[0]
            if found is None:
                return proof_of(self._one, many, loss)
            say(f"not equal{HOW[loss]}: {found}")
        return None

    def by_slices(self) -> tuple[Proof, str]:
        """Have ranks load their slices; return also where a number is read that differs between them."""
        many = self._steps(self._plan, "mean")
        reads = next((step.reads for step in many if step.reads), "")
        ratio = self._one[0].norm / many[0].norm if many[0].norm else 0.0
        found = self._differs(many)
        if found is not None and abs(ratio / self._plan.ranks - 1) < SUMS:
            sums = self._steps(self._plan, "sum")
            if self._differs(sums) is None:
                return proof_of(self._one, sums, "sum"), reads
        if found is not None:
            where = f"{self._plan.ranks} ranks{self._one[0].where}"
            what = f"{self._script} would train differently on {where}: {found}; {WHY}"
            raise AdvisorError(what, otherwise(self._plan))
        return proof_of(self._one, many, "mean"), reads

    def _differs(self, many: tuple[ProofStep, ...]) -> str | None:
        found = difference(self._one, many)
        if found is not None or surely_equal(self._one, many):
            return found
        return difference(self._one, many, self._nudged)

    def _steps(self, plan: Plan, loss: Loss, nudge: bool = False) -> tuple[ProofStep, ...]:
        """Run the first steps, and return what rank 0 noted of each."""
        env = plain_environment(seed=0, proof=True, matched=True, loss=loss, nudge=nudge) | WITHOUT_TF32
        request = Request(plan=plan, purpose="as-is", steps=STEPS, limit=self._limit, env=env)
        trial, folder = self._trials.run(request, self._launch_of)
        ranks = read_ranks(folder.ranks)
        steps = ranks[0].proof if ranks else ()
        where = "as it is" if plan.ranks == 1 else f"on {plan.ranks} ranks"
        hint = otherwise(self._plan)
        if trial.outcome in ("failed", "out-of-memory", "too-long", "wants-to-write"):
            why = "".join(f"; {meaning}" for words, meaning in MEANINGS.items() if words in (trial.said or ""))
            raise AdvisorError(f"{self._script} can't be trained {where}: {trial.said}{why}", hint)
        if not steps:
            made = f"{self._script} made no optimizer step in a trial {where}"
            raise AdvisorError(f"{made}, so nothing tells whether it would train the same", hint)
        return steps
