"""Before a plain script is run on several ranks: its first steps there against the same steps in one process.

Both are trials, with the same data and the same random numbers; nothing of the user's is written. Dropout, mixed
precision and compilation are off in both, so that small differences tell.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch, plain_environment
from advisor.executor.proof import Proof, difference, proof_of
from advisor.executor.records import ProofStep, read_ranks
from advisor.executor.refuse import SHARDED
from advisor.executor.script_imports import packages_of
from advisor.executor.trials import Request, Trials, trials_of
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

STEPS = 5
SECONDS = 600.0  # for each of the two
WITHOUT_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}  # convolutions use it, of 10 bits; the libraries obey this before torch
SUMS = 0.05  # how near the norms' ratio must be to the ranks, for a loss to be taken as a sum over samples
BY_FORCE = "or start without this proof, at your own risk: --unchecked"
SHARDS = "torch.Tensor and DTensor"  # torch's words for arithmetic between the two
TAKEN_APART = (
    "weights in shards (DTensor) meet whole tensors: the script takes a weight itself where the model is not being "
    "called, or GradScaler has gradients of both kinds, since one weight can't be divided"
)
WHY = (
    "the loss of a batch is not the mean of those of its slices (samples compared with one another, as in contrastive "
    "and triplet losses, or a mean over something else than samples), or a step depends on more than its batch"
)


def prove(
    plan: Plan, script: str, arguments: Sequence[str], folder: Path, launch_of: Callable[[Plan, RunFolder], Launch]
) -> Proof:
    """Return what the proof said; raise an AdvisorError where it fails or can't be made."""
    launch = launch_of(plan, RunFolder(folder / "00"))
    plan = in_full_precision(plan)
    launcher = replace(plan.launcher, nproc_per_node=1)
    alone = replace(plan, gpus=plan.gpus[:1], strategy="single", activation_checkpointing="none", launcher=launcher)
    with trials_of(script, arguments, folder, launch) as trials:
        trials.preload(packages_of(script))
        one = _steps(trials, alone, script, launch_of)
        many = _steps(trials, plan, script, launch_of)
        nudged: tuple[ProofStep, ...] = ()
        found, loss = difference(one, many), "mean"
        ratio = one[0].norm / many[0].norm if many[0].norm else 0.0
        if found is not None and abs(ratio / plan.ranks - 1) < SUMS:
            sums = _steps(trials, plan, script, launch_of, loss="sum")
            if difference(one[:1], sums[:1]) is None:
                many, loss = sums, "sum"
                found = difference(one, many)
        if found is not None and difference(one[:1], many[:1]) is None:
            nudged = _steps(trials, alone, script, launch_of, nudged=True)
            found = difference(one, many, nudged)
        if found is not None:
            what = f"{script} would train differently on {plan.ranks} ranks{one[0].where}: {found}; {WHY}"
            raise AdvisorError(what, f"{_otherwise(plan)}; {BY_FORCE}")
        return proof_of(one, many, loss, nudged)


def in_full_precision(plan: Plan) -> Plan:
    """Return the plan without the lower precision that it allows, in which a small difference would not tell."""
    precision = None if plan.precision == "bf16-params" else plan.precision
    return replace(plan, precision=precision, gradient_dtype="fp32")


def _otherwise(plan: Plan) -> str:
    return "train it on one GPU: --gpus 1" + ("; or under DDP: --only ddp" if plan.strategy in SHARDED else "")


def _steps(
    trials: Trials, plan: Plan, script: str, launch_of: Callable[[Plan, RunFolder], Launch], **given: object
) -> tuple[ProofStep, ...]:
    """Run the first steps, and return what rank 0 noted of each."""
    env = plain_environment(seed=0, proof=True, matched=True, **given) | WITHOUT_TF32
    request = Request(plan=plan, purpose="as-is", steps=STEPS, limit=SECONDS, env=env)
    trial, folder = trials.run(request, launch_of)
    ranks = read_ranks(folder.ranks)
    steps = ranks[0].proof if ranks else ()
    where = "as it is" if plan.ranks == 1 else f"on {plan.ranks} ranks"
    if trial.outcome in ("failed", "out-of-memory", "too-long", "wants-to-write"):
        why = f"; {TAKEN_APART}" if SHARDS in (trial.said or "") else ""
        raise AdvisorError(f"{script} can't be trained {where}: {trial.said}{why}", f"{_otherwise(plan)}; {BY_FORCE}")
    if not steps:
        what = f"{script} made no optimizer step in a trial {where}, so nothing tells whether it would train the same"
        raise AdvisorError(what, f"train it as it is: --gpus 1; {BY_FORCE}")
    return steps
