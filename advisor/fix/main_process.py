"""What to ask, at a place in a script, for whether this is rank 0: its own names where they can be seen from there."""

import re
from collections.abc import Iterator

import libcst as cst

from advisor.fix.source import Source, last_name

RANK = re.compile(
    r"(?:\w+\.)*get_rank\(\)|int\(os\.environ(?:\.get\(|\[)[\"']RANK[\"'](?:, *[\"']?0[\"']?)?[\])]\)"
    r"|int\(os\.getenv\([\"']RANK[\"'](?:, *[\"']?0[\"']?)?\)\)"
)
ALONE = re.compile(r"(.+) if .+ else 0", re.DOTALL)
PARAMETERS = ("rank", "global_rank")  # as a function that is started once for each rank takes it
FUNCTIONS = (cst.FunctionDef, cst.Lambda)


def main_process(source: Source, place: cst.CSTNode) -> str | None:
    """Return an expression that is true on rank 0 alone, of names that are bound when the place is reached."""
    ranks = set(_parameters(source, place))
    found = []
    for target, value in _bound_before(source, place):
        value = ALONE.sub(r"\1", value)  # noqa: PLW2901 - what it is in a run of several processes
        if RANK.fullmatch(value):
            ranks.add(target)
        elif re.fullmatch(r"(?:accelerate\.)?Accelerator\(.*\)", value, re.DOTALL):
            found.append(f"{target}.is_main_process")
        elif (asked := re.fullmatch(r"(.+?) == 0", value)) and (asked[1] in ranks or RANK.fullmatch(asked[1])):
            found.append(target)
        elif value in ranks:
            ranks.add(target)
    if found:
        return found[0]
    if ranks:
        return f"{min(ranks, key=lambda name: (name not in PARAMETERS, name))} == 0"
    asked_of = _get_rank(source)
    if asked_of is None:
        return None
    first, started = f"{asked_of}get_rank() == 0", _always_distributed(source)
    return first if started or not asked_of else f"not {asked_of}is_initialized() or {first}"


def negated(condition: str) -> str:
    """Turn what is true on rank 0 alone into what is true on the others."""
    name, equal, number = condition.rpartition(" == ")
    if equal and number == "0" and " or " not in name:
        return f"{name} != 0"
    return f"not ({condition})" if " " in condition else f"not {condition}"


def _parameters(source: Source, place: cst.CSTNode) -> Iterator[str]:
    for function in source.above(place):
        if isinstance(function, cst.FunctionDef):
            names = [param.name.value for param in (*function.params.params, *function.params.kwonly_params)]
            yield from (name for name in names if name in PARAMETERS)


def _bound_before(source: Source, place: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """Yield targets and values of assignments whose name is bound, whatever way was taken to the place."""
    above = list(source.above(place))
    functions = [node for node in above if isinstance(node, FUNCTIONS)]
    first = source.lines(place)[0]
    for target, value, statement in source.assignments():
        own = list(source.above(statement))
        function = next((node for node in own if isinstance(node, FUNCTIONS)), None)
        if isinstance(target, cst.Attribute):  # self.rank, set in __init__
            known = _set_in_init(target, function, own, above)
        elif function in functions or function is None:
            same = function is (functions[0] if functions else None)
            known = (own[0] in above and source.lines(statement)[-1] < first) if same else _unconditional(own, function)
        else:
            known = False
        if known:
            yield source.code(target), source.code(value)


def _set_in_init(
    target: cst.Attribute, function: cst.CSTNode | None, own: list[cst.CSTNode], above: list[cst.CSTNode]
) -> bool:
    if not (isinstance(function, cst.FunctionDef) and function.name.value == "__init__"):
        return False
    cls = next((node for node in own if isinstance(node, cst.ClassDef)), None)
    method = next((node for node in above if isinstance(node, cst.FunctionDef)), None)
    of_self = last_name(target.value) == "self" and cls in above
    return of_self and method is not function and _unconditional(own, function)


def _unconditional(own: list[cst.CSTNode], function: cst.CSTNode | None) -> bool:
    """Say whether a statement of the function, or of the module, is reached whatever the conditions."""
    inside = own[: own.index(function)] if function is not None else own
    blocks = [node for node in inside if isinstance(node, cst.If | cst.For | cst.While | cst.Try | cst.ClassDef)]
    return all(isinstance(node, cst.If) and last_name(_left(node.test)) == "__name__" for node in blocks)


def _left(test: cst.BaseExpression) -> cst.BaseExpression:
    return test.left if isinstance(test, cst.Comparison) else test


def _get_rank(source: Source) -> str | None:
    """Spell what stands before `get_rank()`, as the file imports torch.distributed; None where it does not."""
    text = source.code(source.module)
    for pattern in (
        r"^import torch\.distributed as (\w+)",
        r"^from torch import (?:.*, *)?distributed as (\w+)",
        r"^from torch import (?:.*, *)?(distributed)\b",
    ):
        if found := re.search(pattern, text, re.MULTILINE):
            return f"{found[1]}."
    return "torch.distributed." if re.search(r"^import torch(\.[\w.]+)?\s*($|,|#)", text, re.MULTILINE) else None


def _always_distributed(source: Source) -> bool:
    """Say whether the file starts a process group whatever the conditions."""
    for call in source.calls():
        if last_name(call.func) in ("init_process_group", "init_device_mesh"):
            function = next((node for node in source.above(call) if isinstance(node, FUNCTIONS)), None)
            if _unconditional(list(source.above(call)), function):
                return True
    return False
