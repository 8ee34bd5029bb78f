"""Judge the lines of a case that give a figure: `predicted ...`, and `diagnosis in {...}`."""

import re
from typing import Any

from case_answers import COMPARE, Answer
from case_jobs import usual_micro_batch
from case_options import Verdict
from msgspec.structs import replace

from advisor.rules.fabric import collectives_of
from advisor.rules.hardware import GIB
from advisor.rules.plan import Plan
from advisor.rules.strategies import Group, Shape, plans

EXPOSED = 0.25  # of the step: from there on communication is what a diagnosis names
NEAR = 0.5  # relative: what `near 20%` allows
HEALTHY = {"inter_link": "healthy fabric"}

_NUMBER = r"(\d+(?:\.\d+)?)\s*(%?)"
_BOUNDS = (
    (re.compile(rf"between {_NUMBER} and {_NUMBER}"), "between"),
    (re.compile(rf"(<=|>=|<|>) {_NUMBER}"), "compare"),
    (re.compile(rf"(?:near|about|around) {_NUMBER}"), "near"),
)
_GROUP = re.compile(r"\b(\d+)\s*x\s*(\d+)\b|\b(\d+)\s+(?:\w+\s+)?gpus?\b", re.IGNORECASE)
_DIAGNOSES = {
    "communication": {"communication", "network", "interconnect", "links", "link", "bandwidth"},
    "compute": {"compute", "gpu"},
    "memory": {"memory", "oom"},
}


def judge_figure(answer: Answer, text: str) -> Verdict:
    """Judge what stands behind `predicted`."""
    if "gain" in text and "across nodes" in text:
        across, within = (gain(answer, nodes) for nodes in (answer.machine.nodes, 1))
        return Verdict(across > within, f"{across:.2f}x across, {within:.2f}x within")
    bounds = next(((match, kind) for pattern, kind in _BOUNDS if (match := pattern.search(text))), None)
    if bounds is None:
        return Verdict(None, "not understood")
    value = figure(answer, text[: bounds[0].start()], text)
    if value is None:
        return Verdict(None, "no such figure")
    return Verdict(_inside(value, *bounds), f"{value:.3g}")


def _inside(value: float, match: re.Match[str], kind: str) -> bool:
    groups = match.groups()
    if kind == "between":
        return _scaled(groups[0], groups[1] or groups[3]) <= value <= _scaled(groups[2], groups[3])
    if kind == "compare":
        return COMPARE[groups[0]](value, _scaled(groups[1], groups[2]))
    middle = _scaled(groups[0], groups[1])
    return (1 - NEAR) * middle <= value <= (1 + NEAR) * middle


def _scaled(number: str, percent: str) -> float:
    return float(number) / 100 if percent else float(number)


def figure(answer: Answer, name: str, text: str) -> float | None:
    """Return the figure that a case asks for, in its unit; None where there is no such."""
    lower = name.lower()
    gigabyte = GIB if "GiB" in text else 1e9
    if re.search(r"all-?reduce|bus", lower) and "bandwidth" in lower:
        ids = tuple(gpu.id for gpu in answer.machine.gpus)
        return collectives_of(answer.machine, ids, nodes=answer.machine.nodes)["all_reduce"].bus_bandwidth / 1e9
    if "efficiency" in lower:
        return efficiency(answer, *group_of(answer, name))
    if "loss" in lower:
        asked = answer.changed(HEALTHY, {}) if "healthy" in text else answer
        hosts, gpus = asked.machine.nodes, len(asked.machine.gpus)
        return 1 - efficiency(asked, hosts, gpus) / efficiency(asked, 1, gpus)
    predicted = answer.found.predicted if answer.found else None
    if predicted is None:
        return None
    if re.search("peak|memory", lower):
        return predicted.memory.total / gigabyte
    if "comm" in lower:
        return predicted.exposed_communication_seconds / predicted.step_seconds
    ranks = answer.plan.ranks if answer.plan and re.search("per (gpu|device|rank)", lower) else 1
    for unit, rate in (("tokens", predicted.tokens_per_second), ("samples", predicted.samples_per_second)):
        if unit in lower:
            return rate / ranks
    return predicted.step_seconds if "step" in lower else None


def group_of(answer: Answer, text: str) -> tuple[int, int]:
    """Return the hosts and the GPUs of each that a text names, else all."""
    match = _GROUP.search(text)
    if match is None:
        return answer.machine.nodes, len(answer.machine.gpus)
    return (1, int(match[3])) if match[3] else (int(match[1]), int(match[2]))


def efficiency(answer: Answer, nodes: int, gpus: int) -> float:
    """Return samples per second and GPU under DDP against one GPU alone, each with the same micro-batch."""
    alone = _plan(answer, 1, 1, accumulation=1)
    return _step(answer, alone) / _step(answer, _plan(answer, nodes, gpus, accumulation=1))


def gain(answer: Answer, nodes: int) -> float:
    """Return how much faster accumulated DDP is that synchronises in the last micro-batch only."""
    lazy = _plan(answer, nodes, len(answer.machine.gpus), accumulation=4)
    return _step(answer, replace(lazy, sync_each_micro_batch=True)) / _step(answer, lazy)


def _plan(answer: Answer, nodes: int, gpus: int, *, accumulation: int) -> Plan:
    group = Group(tuple(gpu.id for gpu in answer.machine.gpus[:gpus]), nodes)
    micro = answer.job.micro_batch or usual_micro_batch(answer.job.seq)
    job = replace(answer.job, global_batch=micro * accumulation * group.ranks)
    shape = Shape("single") if group.ranks == 1 else Shape("ddp")
    return next(iter(plans(job, answer.machine, group, shape, [micro], checkpointing="none")))


def _step(answer: Answer, plan: Plan) -> float:
    return answer.costs.predict(plan, answer.costs.memory(plan)).step_seconds


def judge_diagnosis(answer: Answer, text: str) -> Verdict:
    """Judge `in {...}`: what the predicted step waits for, or memory where nothing fits."""
    found: Any = answer.found
    names = re.search(r"\{(.*?)\}", text)
    if names is None:
        return Verdict(None, "not understood")
    if found is None:
        return Verdict(None, answer.words)
    predicted = found.predicted
    kind = "memory"
    if predicted is not None:
        waits = predicted.exposed_communication_seconds >= EXPOSED * predicted.step_seconds
        kind = "communication" if waits else "compute"
    asked = {word for name in names[1].lower().split(",") for word in re.split(r"[\s_-]+", name.strip())}
    return Verdict(bool(asked & _DIAGNOSES[kind]), kind)
