"""What the advisor answers to a case, and what can be asked of that answer: strategies, settings, memory."""

import operator
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from case_jobs import job_of_case, trains
from case_machines import machine_of
from msgspec.structs import replace

from advisor.rules.catalog import RULES
from advisor.rules.cost import Costs
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GIB
from advisor.rules.job import Job
from advisor.rules.memory import reduce_bytes
from advisor.rules.plan import Assumption, Finding, Plan, Recommendation
from advisor.rules.recommend import recommend
from advisor.rules.rule import Case as RuleCase
from advisor.rules.rule import run_rules

OFFLOAD, COMPRESSION = "cpu-offload", "bf16-gradients"
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
# A plan as it is without a setting, on which a case's `when ...` is judged.
WITHOUT: dict[str, dict[str, Any]] = {
    "activation_checkpointing": {"activation_checkpointing": "none"},
    "sync_each_micro_batch": {"sync_each_micro_batch": True},
    "no_sync": {"sync_each_micro_batch": True},
}


class Condition(NamedTuple):
    """Something a case asks of a plan; `holds` gets the answer, the plan and the match of the pattern."""

    pattern: str
    holds: "Callable[[Answer, Plan, re.Match[str]], bool]"


class Answer:
    """The advisor's answer to a case's hardware and workload."""

    def __init__(self, hardware: dict[str, Any], workload: dict[str, Any], inputs: dict[str, Any]) -> None:
        self.hardware, self.workload, self.inputs = hardware, workload, inputs
        self.machine, self.assumed = machine_of(hardware, inputs)

    def changed(self, hardware: dict[str, Any], workload: dict[str, Any]) -> "Answer":
        """Ask the same of a machine or a job that differ in what is given."""
        return Answer(self.hardware | hardware, self.workload | workload, self.inputs)

    @cached_property
    def _job(self) -> tuple[Job, list[Assumption]] | None:
        return job_of_case(self.workload, self.machine) if trains(self.workload) else None

    @property
    def job(self) -> Job:
        if self._job is None:
            raise AdvisorError("this case trains nothing", "")
        return self._job[0]

    @cached_property
    def found(self) -> Recommendation | None:
        """The recommendation; None where the case is not about training, or nothing could be planned."""
        try:
            return recommend(self.job, self.machine)
        except AdvisorError as error:
            self.refused = f"{error.message}; {error.hint}"
            return None

    refused = ""

    @property
    def plan(self) -> Plan | None:
        return self.found.plan if self.found else None

    def allowing(self, change: str) -> Recommendation:
        """Answer with a change allowed."""
        return recommend(replace(self.job, allow=(*self.job.allow, change)), self.machine)

    @cached_property
    def costs(self) -> Costs:
        return Costs(self.job, self.machine)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.found.findings if self.found else run_rules(RULES, RuleCase(machine=self.machine))

    @cached_property
    def strategies(self) -> frozenset[str]:
        """Name what is recommended in the cases' words.

        Accumulated DDP is `ddp_accum` and not `ddp`; one of several hosts is `single_node` as well. Where nothing
        fits, the answer is `refuse`, and `fsdp_offload` too where it offers that as a change that would fit.
        """
        if self.plan is None:
            return frozenset({"refuse", *(["fsdp_offload"] if self._offers_offload else [])})
        names = {strategy_name(self.plan)}
        if self.machine.nodes > 1 and self.plan.nodes == 1:
            names.add("single_node")
        return frozenset(names)

    @property
    def _offers_offload(self) -> bool:
        ways = [way for finding in self.findings for way in finding.facts.get("what_would_fit", ())]
        return any(way["option"] == f"--allow {OFFLOAD}" and way["fits"] is not False for way in ways)

    @property
    def words(self) -> str:
        if self.found is None:
            return self.refused or "not a training job"
        plan = self.found.plan
        if plan is None:
            return f"does not fit: {self.found.summary}"
        parts = [f"{plan.micro_batch}x{plan.accumulation} samples", f"checkpointing {plan.activation_checkpointing}"]
        parts += [] if plan.sync_each_micro_batch or plan.accumulation == 1 else ["no_sync"]
        return f"{self.found.summary}; {', '.join(parts)}"


def strategy_name(plan: Plan) -> str:
    """Name a plan's strategy as the cases do."""
    if plan.strategy == "ddp" and plan.accumulation > 1:
        return "ddp_accum"
    return "fsdp_offload" if plan.cpu_offload else plan.strategy


def checkpoints(plan: Plan, wanted: str) -> bool:
    """Compare activation checkpointing; `true` is any."""
    if wanted in ("true", "on"):
        return plan.activation_checkpointing != "none"
    return plan.activation_checkpointing == {"false": "none", "off": "none"}.get(wanted, wanted)


def _peak(answer: Answer, plan: Plan, match: re.Match[str]) -> bool:
    sign, percent, size = match.groups()
    memory = answer.machine.gpu(plan.gpus[0]).memory or 0
    limit = float(percent) / 100 * (int(size) * GIB if size else memory)
    return COMPARE[sign](answer.costs.memory(plan).total, limit)


def _headroom(answer: Answer, plan: Plan, match: re.Match[str]) -> bool:
    needed = answer.costs.memory(plan)
    return COMPARE[match[1]](needed.available - needed.total, reduce_bytes(plan) * answer.job.trainable_params)


_SIGN = r"\s*(<=|>=|<|>|=)\s*"
CONDITIONS = (
    Condition(
        r"activation_checkpointing(?:\s*=\s*(\w+))?", lambda _, plan, match: checkpoints(plan, match[1] or "true")
    ),
    Condition(
        rf"grad_accum_steps{_SIGN}(\d+)", lambda _, plan, match: COMPARE[match[1]](plan.accumulation, int(match[2]))
    ),
    Condition(r"full_shard", lambda _, plan, __: plan.reshard_after_forward),
    Condition(r"shard_grad_op", lambda _, plan, __: not plan.reshard_after_forward),
    Condition(rf"predicted peak{_SIGN}(\d+)\s*%\s*of\s*(?:memory|(\d+)\s*gi?b)", _peak),
    Condition(rf"headroom{_SIGN}(?:the )?unsharded gradient", _headroom),
)


def conditions(answer: Answer, plan: Plan, text: str) -> list[bool]:
    """Judge each condition of the text that is known."""
    found = ((condition, re.search(condition.pattern, text.lower())) for condition in CONDITIONS)
    return [condition.holds(answer, plan, match) for condition, match in found if match]
