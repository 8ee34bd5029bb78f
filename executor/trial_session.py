"""The trials of one calibration: how long each may take, what came of it, and what is left of the budget."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from advisor.executor.console import say
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch
from advisor.executor.observe import observed_of
from advisor.executor.records import read_ranks
from advisor.executor.report import WARM_UP_STEPS
from advisor.executor.trials import Request, Trials
from advisor.rules.format import seconds
from advisor.rules.observed import Observed
from advisor.rules.plan import Plan
from advisor.rules.plan_name import strategy
from advisor.rules.trial import Purpose, Timing, Trial, timings

LEAST_STEPS, MOST_STEPS = 5, 40  # measured in one trial
LONG_STEP, LEAST_LONG_STEPS = 1.0, 3  # seconds; of such steps so few are enough
MEASURED_SECONDS = 1.0  # in one trial, where a step is short
SLOWER = 4.0  # times the best step: a plan that is so slow is stopped
START_AGAIN = 2.0  # times the start of the first trial, before a plan counts as hanging
SPARE_SECONDS = 3.0
CLEAN_UP_SECONDS = 1.0  # after the last trial
SHARE_OF_FIRST = 0.5  # of what is left of the budget, that the first trial may take


class Session:
    def __init__(
        self, trials: Trials, launch: Callable[[Plan, RunFolder], Launch], budget: float, started: float
    ) -> None:
        self.started = started  # by time.monotonic()
        self.done: list[Trial] = []
        self.observed: Observed | None = None
        self.log = ""  # of NCCL, in the first trial
        self._trials, self._launch, self._budget = trials, launch, budget
        self._steps = WARM_UP_STEPS + LEAST_STEPS

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        return self._budget - self.spent - CLEAN_UP_SECONDS

    def first(self, plan: Plan) -> Trial:
        """Run the script as it is, look at its model and batch, and let NCCL say how the GPUs talk."""
        trial, folder = self._run(plan, "as-is", self.left * SHARE_OF_FIRST, {"NCCL_DEBUG": "INFO"})
        self.observed = next((seen for seen in map(observed_of, read_ranks(folder.ranks)) if seen), None)
        self.log = "\n".join(path.read_text(errors="replace") for path in folder.logs.glob("nccl.*"))
        if trial.steps:
            self._steps = WARM_UP_STEPS + steps_for(median(trial.steps))
        return trial

    def again(self, plan: Plan, purpose: Purpose, best: float | None, leaving: int = 0) -> Trial | None:
        """Try a plan; None where too little of the budget is left.

        `best` is the shortest step so far, in seconds; None: no plan has run to its end yet. `leaving` is how many more
        trials the budget must be enough for afterwards.
        """
        start = self.done[0].start_seconds or 0.0  # with the steps of the warm-up
        if best is None:
            limit = self.left * SHARE_OF_FIRST
        elif (1 + leaving) * (start + (self._steps - WARM_UP_STEPS) * best) > self.left:
            return None
        else:
            limit = START_AGAIN * start + SLOWER * self._steps * best + SPARE_SECONDS
        if limit < SPARE_SECONDS:
            return None
        return self._run(plan, purpose, min(limit, self.left), {})[0]

    def of(self, plan: Plan) -> list[Trial]:
        """Return the trials of a plan with its traffic, in their order."""
        return [trial for trial in self.done if trial.plan == plan and trial.purpose != "no-communication"]

    def timing(self, plan: Plan) -> Timing:
        """Return what is known of a plan of which every trial was measured."""
        ((_, known),) = self.timings([plan])
        return known

    def timings(self, plans: Sequence[Plan]) -> list[tuple[Plan, Timing]]:
        """Return what is known of those plans of which every trial was measured."""
        everything = timings([(plan, self.of(plan)) for plan in self._plans()])
        return [(plan, known) for plan, known in everything if plan in plans]

    def _plans(self) -> list[Plan]:
        plans = [trial.plan for trial in self.done]
        return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]

    def best(self, plans: Sequence[Plan]) -> float | None:
        """Return the shortest step of plans, in seconds; None where none was measured."""
        return min((known.median for _, known in self.timings(plans)), default=None)

    def _run(self, plan: Plan, purpose: Purpose, limit: float, env: Mapping[str, str]) -> tuple[Trial, RunFolder]:
        request = Request(plan=plan, purpose=purpose, steps=self._steps, limit=limit, env=dict(env))
        trial, folder = self._trials.run(request, self._launch)
        self.done.append(trial)
        say(f"trial {len(self.done)}: {_told(trial)}")
        return trial, folder


def steps_for(step: float) -> int:
    """Return how many steps of that many seconds a trial measures; long ones differ little from each other."""
    least = LEAST_STEPS if step < LONG_STEP else LEAST_LONG_STEPS
    return min(max(int(MEASURED_SECONDS / step), least), MOST_STEPS)


def _told(trial: Trial) -> str:
    settings = "".join(f", {name}={value}" for name, value in trial.plan.env.items() if name != "NCCL_DEBUG")
    alone = ", each rank alone" if trial.purpose == "no-communication" else ""
    came = f"{seconds(median(trial.steps))} per step" if trial.steps else f"{trial.outcome}, {trial.said}"
    return f"{strategy(trial.plan)}{settings}{alone}: {came}"
