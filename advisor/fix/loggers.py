"""Correct trackers and progress bars that every rank starts: rank 0 alone has them."""

import libcst as cst

from advisor.fix.guard import local_to_rank, under
from advisor.fix.main_process import main_process, negated
from advisor.fix.source import Edit, Edits, Source, adding, argument, last_name
from advisor.rules.plan import Finding

WITH_MODE = ("wandb.init", "swanlab.init")  # they take mode="disabled"


def disable_tracker(source: Source, finding: Finding, kind: str) -> Edits:
    """Start the tracker with mode="disabled" on other ranks: what they log later goes nowhere."""
    for call in source.calls_at(finding.line or 0, "init"):
        stars = any(arg.star == "**" for arg in call.args)
        if source.code(call.func) in WITH_MODE and argument(call, "mode") is None and not stars:
            condition = main_process(source, call)
            if condition is not None:
                return {call: [adding("mode", f'None if {condition} else "disabled"')]}
    return {}


def disable_bar(source: Source, finding: Finding, kind: str) -> Edits:
    """Show a progress bar on rank 0 alone."""
    for call in source.calls_at(finding.line or 0, "tqdm", "trange"):
        if argument(call, "disable") is None and not any(arg.star == "**" for arg in call.args):
            condition = main_process(source, call)
            if condition is not None:
                return {call: [adding("disable", negated(condition))]}
    return {}


def lone_writer(source: Source, finding: Finding, kind: str) -> Edits:
    """Make a SummaryWriter None on other ranks, and whatever is written to it ask for that."""
    for target, value, statement in source.assignments():
        made = isinstance(value, cst.Call) and last_name(value.func) == "SummaryWriter"
        if not made or not isinstance(target, cst.Name) or finding.line not in source.lines(statement):
            continue
        condition, uses = main_process(source, value), _uses(source, target, kind)
        if condition is None or uses is None:
            return {}
        edits: Edits = {value: [_or_none(condition)]}
        for use in uses:
            for node, changes in under(source, use, f"{target.value} is not None").items():
                known = edits.setdefault(node, [])
                known += [change for change in changes if change not in known]
        return edits
    return {}


def _or_none(condition: str) -> Edit:
    choice = cst.parse_expression(f"0 if {condition} else None")
    return lambda node: choice.with_changes(body=node)


def _uses(source: Source, target: cst.Name, kind: str) -> list[cst.SimpleStatementLine] | None:
    """List the statements that write to a writer; None where anything else is done with it."""
    found = []
    for name in source.names(target.value):
        if name is target:
            continue
        match (*source.above(name), None, None, None)[:4]:
            case (cst.Attribute() as method, cst.Call() as call, cst.Expr(), cst.SimpleStatementLine() as statement):
                if call.func is not method or len(statement.body) != 1 or not local_to_rank(call, kind):
                    return None
                found.append(statement)
            case _:
                return None
    return found
