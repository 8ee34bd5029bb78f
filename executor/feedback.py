"""After a real run: keep by how much the models were wrong, so that the next prediction on this machine is better."""

from pathlib import Path

from msgspec.structs import replace

from advisor.executor.console import say
from advisor.executor.folder import RunFolder
from advisor.executor.machine_store import keep_run, recall
from advisor.executor.observe import observed_of
from advisor.executor.records import read_ranks
from advisor.executor.report import Run
from advisor.rules.machine import Machine
from advisor.rules.measurements import RunRatio, calibration_of, device_kind
from advisor.rules.proposals import predicted_as_run

LEAST_STEPS = 3  # measured ones, of which the median is worth keeping


def learn(run: Run, machine: Machine) -> RunRatio | None:
    """Keep the ratio of the measured step to what the models alone have for it; None where there is no such pair.

    Alone: with the measured links of this machine, without what earlier runs or trials said of the step. A plan that
    changes NCCL's settings ran over other links than those.
    """
    if any(name.startswith("NCCL_") and name != "NCCL_DEBUG" for name in run.plan.env):
        return None
    if run.exit_code != 0 or run.step is None or run.step.steps < LEAST_STEPS:
        return None
    observed = next(filter(None, map(observed_of, read_ranks(RunFolder(Path(run.folder)).ranks))), None)
    if observed is None:
        return None
    device = device_kind(machine, run.plan.gpus[0])
    kept = recall(machine).measurements
    calibration = replace(calibration_of(kept, device), correction=None)
    predicted = predicted_as_run(run.plan, observed, machine, calibration)
    if predicted is None:
        return None
    ratio = RunRatio(
        date=run.started,
        script=Path(run.script).name,
        strategy=run.plan.strategy,
        device=device,
        ratio=run.step.median / predicted.step_seconds,
        links=kept.links.date if kept and kept.links else None,
    )
    line = keep_run(machine, ratio)
    if line is not None:
        say(line)
    return ratio
