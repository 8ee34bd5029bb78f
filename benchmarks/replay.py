"""Let the trials of `advisor apply` choose among measured rows: python benchmarks/replay.py [--budget 120] FILE...

Groups are those of regret.py. The code that chooses is the executor's own; a trial returns the row of its plan with
noise as trials of two H200 had it, and takes as long as one did. What the rows can't tell, a plan that none of them
has, is not tried. The last line is a JSON object: regret by the rows' own medians, in per cent, over many draws.
"""

import argparse
import json
import random
import statistics
from statistics import median
from typing import Any

from regret import ALLOW, groups_of, regret
from steps import Row, calibration_of, read

from advisor.executor.calibrate import race
from advisor.executor.report import WARM_UP_STEPS
from advisor.executor.trial_session import LEAST_STEPS, Session, steps_for
from advisor.rules.plan import Plan
from advisor.rules.proposals import Proposal
from advisor.rules.trial import Purpose, Trial, settle

DRAWS = 20
IMPORTS = 20.0  # seconds, once: torch and transformers
START = 4.0  # seconds of a forked trial before its first step
STEP_NOISE, TRIAL_NOISE = 0.015, 0.012  # relative standard deviations, of steps and of a trial's level


class Replay(Session):
    """Trials that are looked up."""

    def __init__(self, rows: list[Row], budget: float, draw: random.Random) -> None:
        self._rows, self._draw, self._clock = rows, draw, IMPORTS
        self._budget, self._steps = budget, WARM_UP_STEPS + LEAST_STEPS
        self.done: list[Trial] = []

    @property
    def spent(self) -> float:
        return self._clock

    def begin(self, plan: Plan) -> None:
        """Run the script as it is."""
        trial, _ = self._run(plan, "as-is", self.left, {})
        self._steps = WARM_UP_STEPS + steps_for(median(trial.steps))

    def _run(self, plan: Plan, purpose: Purpose, limit: float, _: Any) -> Any:
        row = next(row for row in self._rows if row.plan == plan)
        assert row.seconds is not None
        level = row.seconds * (1 + self._draw.gauss(0, TRIAL_NOISE))
        steps = tuple(level * (1 + self._draw.gauss(0, STEP_NOISE)) for _ in range(self._steps - WARM_UP_STEPS))
        needed = START + level * self._steps
        self._clock += min(needed, limit)
        late = needed > limit
        trial = Trial(
            plan=plan,
            purpose=purpose,
            outcome="too-long" if late else "measured",
            steps=() if late else steps,
            seconds=min(needed, limit),
            start_seconds=START,
        )
        self.done.append(trial)
        return trial, None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--allow", choices=(ALLOW,))
    args = parser.parse_args()
    rows, collectives = read(args.files)
    draw = random.Random(0)
    means, worst, spent, count = [], [], [], []
    for group, members in groups_of(rows, bf16=args.allow is not None).items():
        own = next((row for row in members if row.plan.strategy == "ddp" and row.plan.bucket_cap_mb == 25), members[0])
        others = [row for row in members if row is not own]
        calibration = calibration_of(own, rows, collectives)
        wanted = [Proposal(plan=row.plan, predicted=row.costs(calibration)) for row in others]
        wanted.sort(key=lambda one: one.predicted.step_seconds if one.predicted else 0.0)
        found = []
        for _ in range(DRAWS):
            session = Replay(members, args.budget, draw)
            session.begin(own.plan)
            tried, _ = race(session, own.plan, wanted)
            chosen = settle(session.timings(tried))
            found.append(regret(members, next(row for row in members if row.plan == chosen)))
            spent.append(session.spent)
            count.append(len(session.done))
        means.append(statistics.mean(found))
        worst.append(max(found))
        words = " ".join(str(part) for part in group if part != ())
        print(f"{words:44}{len(members):3} plans {means[-1]:6.2f} % mean {worst[-1]:6.2f} % worst")
    figures = {
        "groups": len(means),
        "budget": args.budget,
        "mean_pct": round(statistics.mean(means), 2),
        "worst_group_mean_pct": round(max(means), 2),
        "max_pct": round(max(worst), 2),
        "seconds_mean": round(statistics.mean(spent), 1),
        "seconds_max": round(max(spent), 1),
        "trials_mean": round(statistics.mean(count), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
