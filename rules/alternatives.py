"""What rules compare a plan with: other candidates on as many GPUs, and the same plan with a setting changed."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from advisor.rules.cost import Costs
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Candidate, Predicted
from advisor.rules.rule import Case

SLOWER = 1.25  # times the step time: less is within what the models can tell apart, and no reason for a word
ADAPTERS = 0.1  # of the parameters: who trains fewer trains adapters, or a frozen base


def rivals(case: Case, *strategies: str) -> list[Candidate]:
    """Return the candidates of these strategies on as many GPUs and hosts as the plan has."""
    plan = case.plan
    if plan is None:
        return []
    return [
        candidate
        for candidate in case.candidates
        if candidate.plan.strategy in strategies
        and (candidate.plan.ranks, candidate.plan.nodes) == (plan.ranks, plan.nodes)
    ]


def fastest(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the fastest of those that fit, None where none does."""
    fitting = [candidate for candidate in candidates if candidate.predicted.memory.fits]
    return min(fitting, key=lambda candidate: candidate.predicted.step_seconds, default=None)


def smallest(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the one that needs the least memory per rank."""
    return min(candidates, key=lambda candidate: candidate.predicted.memory.total, default=None)


def changed(case: Case, **settings: Any) -> Predicted | None:
    """Price the case's plan with some settings changed; None where there is no plan, or nothing to price it by."""
    if case.job is None or case.plan is None:
        return None
    costs = Costs(case.job, case.machine)
    plan = replace(case.plan, **settings)
    try:
        return costs.predict(plan, costs.memory(plan))
    except AdvisorError:
        return None


def exposed_share(predicted: Predicted) -> float:
    """Return which share of a step is spent waiting for communication."""
    return predicted.exposed_communication_seconds / predicted.step_seconds if predicted.step_seconds else 0.0
