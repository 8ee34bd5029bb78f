"""Judge the lines of a case that name a setting: `option ...` of a plan, `env ...` of its environment."""

import re
from typing import Any, NamedTuple

from case_answers import COMPARE, COMPRESSION, WITHOUT, Answer, checkpoints, conditions
from msgspec.structs import replace

from advisor.rules.plan import Plan


class Verdict(NamedTuple):
    """Whether a line holds, None where it can't be judged, and what was found."""

    holds: bool | None
    found: str = ""


# The cases' names of what a plan holds, where they differ.
FIELDS = {"grad_accum_steps": "accumulation", "gradient_accumulation_steps": "accumulation", "shard": "shard_size"}
_ASSIGNED = re.compile(r"(\w+)\s*=\s*(.+)")
# Where the model is built or lies before it is wrapped, as against moving it to the GPU first.
_BUILT = re.compile(
    r"\bmeta\b|\bsync_module_states\b"
    r"|\b(?:init|build|built|load|keep|stay)\w*\b.*\bon (?:the )?(?:cpu|host)\b"
    r"|\b(?:not|no|never|without)\b.*(?:\.cuda\(|\.to\(|\bmov\w+).*\bbefore\b.*\b(?:wrap|shard|fsdp)"
)
_COMMUNICATION = re.compile(r"large enough.*comm\w*\s*(<=|<)\s*(\d+)\s*%")


def is_option(text: str) -> bool:
    """Say whether a text sets something of a plan: `activation_checkpointing = none`."""
    match = _ASSIGNED.match(text)
    return match is not None and _field(match[1]) is not None


def judge_option(answer: Answer, text: str) -> Verdict:
    """Judge what stands behind `option`."""
    plan = answer.plan
    if plan is None:
        return Verdict(False, answer.words)
    lower = text.lower()
    wanted, _, condition = (part.strip() for part in lower.partition(" when "))
    if "compress" in wanted:
        return _compression(answer, only=wanted.endswith("only"))
    name = next((name for name in WITHOUT if wanted.startswith(name)), "")
    if condition:
        asked = conditions(answer, replace(plan, **WITHOUT[name]), condition) if name else []
        if not asked:
            return Verdict(None, "its condition is not understood")
        if not all(asked):
            return Verdict(True, "its condition does not hold here")
    return _setting(answer, plan, wanted)


def _setting(answer: Answer, plan: Plan, wanted: str) -> Verdict:
    share = _COMMUNICATION.search(wanted)
    if share:
        predicted = answer.found.predicted if answer.found else None
        part = predicted.communication_seconds / predicted.step_seconds if predicted else 1.0
        return Verdict(COMPARE[share[1]](part, int(share[2]) / 100), f"{part:.0%} of the step")
    if _BUILT.search(wanted):
        holds = plan.strategy in ("fsdp", "hsdp") and plan.shard_from == "cpu"
        return Verdict(holds, f"{plan.strategy} from {plan.shard_from} memory")
    assigned = _ASSIGNED.match(wanted)
    if assigned:
        return _assigned(plan, assigned[1], assigned[2])
    if wanted.startswith("activation_checkpointing"):
        return Verdict(checkpoints(plan, "true"), plan.activation_checkpointing)
    if wanted.startswith("no_sync"):
        return Verdict(
            plan.accumulation == 1 or not plan.sync_each_micro_batch, f"{plan.accumulation} micro-batches a step"
        )
    if "all-reduce" in wanted and "defer" in wanted:
        return Verdict(plan.strategy == "hsdp" and plan.accumulation > 1, plan.strategy)
    return Verdict(False, "no setting of a plan")


def _assigned(plan: Plan, name: str, text: str) -> Verdict:
    field = _field(name)
    if field is None:
        return Verdict(False, "no setting of a plan")
    values, _, extra = text.partition(" with ")
    value = plan.launcher.nproc_per_node if field == "nproc_per_node" else getattr(plan, field)
    unwanted = re.findall(r"\bnot (\w+)", values)
    wanted = re.findall(r"[\w.+-]+", re.sub(r"\bnot \w+|\([^)]*[a-z/*][^)]*\)|\bor\b", " ", values))
    holds = any(_same(plan, field, value, word) for word in wanted)
    holds = holds and not any(_same(plan, field, value, word) for word in unwanted)
    if "no_sync" in extra:
        holds = holds and not plan.sync_each_micro_batch
    return Verdict(holds, f"{field} {value}")


def _same(plan: Plan, field: str, value: Any, word: str) -> bool:
    if field == "activation_checkpointing":
        return checkpoints(plan, word)
    if isinstance(value, bool):
        return word == str(value).lower()
    if isinstance(value, int | float):
        return re.fullmatch(r"\d+(?:\.\d+)?", word) is not None and float(word) == value
    if value is None:
        return word in ("none", "null", "unset", "default")
    return str(value).lower().startswith(word)


def _field(name: str) -> str | None:
    found = FIELDS.get(name, name)
    return found if found in (*Plan.__struct_fields__, "nproc_per_node") else None


def _compression(answer: Answer, *, only: bool) -> Verdict:
    """Gradients are rounded only where the user allows it: then they must be, and without it never."""
    plan = answer.plan
    if plan is None:
        return Verdict(False, answer.words)
    if only:
        return Verdict(plan.gradient_dtype == "fp32", f"{plan.gradient_dtype} gradients")
    allowed = answer.allowing(COMPRESSION).plan
    dtype = allowed.gradient_dtype if allowed else "no"
    return Verdict(dtype in ("bf16", "fp16"), f"{dtype} gradients with --allow {COMPRESSION}")


def judge_environment(answer: Answer, text: str) -> Verdict:
    """Judge what stands behind `env`: a value, `unset`, or what a value must not hold.

    A value in words only asks that the variable be set. A variable that the machine has set must be named by a finding.
    """
    match = re.match(r"([A-Z][A-Z0-9_]+)\s*(=|unset|must not contain)\s*(.*)", text)
    if match is None:
        return Verdict(None, "not understood")
    name, relation, value = match.groups()
    planned = answer.plan.env.get(name) if answer.plan else None
    there = answer.machine.environment.get(name)
    named = any(name in f"{finding.message} {finding.remedy} {finding.facts}" for finding in answer.findings)
    shown = f"planned {planned}, there {there}{', named by a finding' if named else ''}"
    if relation == "must not contain":
        word = value.split()[0]
        return Verdict(word not in (planned or "") and (word not in (there or "") or named), shown)
    if relation == "unset" or (planned is None and re.search(r"\bunset\b", value)):
        return Verdict(planned is None and (there is None or named), shown)
    listed = re.search(r"or a list that excludes ([\w, ]+)", value)
    if listed and planned is not None and planned.startswith("^"):
        without = set(re.split(r", | and ", listed[1]))
        return Verdict(without <= set(planned[1:].split(",")), shown)
    if "when one exists" in value and planned is None and answer.machine.host.topology_file is None:
        return Verdict(True, "its condition does not hold here")
    first = value.split("(")[0].split(",")[0].strip()
    return Verdict(planned is not None and (" " in first or planned == first), shown)
