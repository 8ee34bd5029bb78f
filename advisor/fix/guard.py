"""Correct what every rank writes or prints: rank 0 alone does it."""

from collections.abc import Iterator

import libcst as cst

from advisor.fix.main_process import main_process
from advisor.fix.source import Edits, Source, last_name
from advisor.rules.plan import Finding

# Calls that another rank never waits for. What is called beside them, and so might be a collective, is left alone.
LOCAL = frozenset(
    {
        *("abs", "append", "basename", "cpu", "ctime", "datetime", "detach", "dict", "dim", "dirname", "exp", "f"),
        *("float", "format", "format_map", "fromtimestamp", "get", "get_last_lr", "getattr", "int", "isoformat"),
        *("item", "items", "join", "keys", "len", "list", "ljust", "log", "lower", "max", "max_memory_allocated"),
        *("max_memory_reserved", "mean", "memory_allocated", "memory_reserved", "min", "monotonic", "now", "numel"),
        *("numpy", "parameters", "perf_counter", "range", "repr", "rjust", "round", "size", "sorted", "sqrt", "str"),
        *("strftime", "strip", "sum", "time", "tolist", "tuple", "type", "upper", "values", "vars", "zip", "exp"),
        *("Path", "dumps", "asdict", "with_suffix", "with_name", "joinpath", "as_posix", "fspath", "abspath"),
    }
)
STATES = frozenset({"state_dict"})  # whole on each rank, unless the model is sharded
WHOLE = ("ddp", "accelerate", "plain", "unknown", "spawn")  # kinds of scripts where it is not


def guard(source: Source, finding: Finding, kind: str) -> Edits:
    """Put the statement of the finding under a condition that holds on rank 0 alone."""
    for call in _calls_at(source, finding):
        statement = source.statement_of(call)
        if statement is None or len(statement.body) != 1:
            continue
        small = statement.body[0]
        if not (isinstance(small, cst.Expr) and small.value is call) or not local_to_rank(call, kind):
            continue
        condition = main_process(source, statement)
        if condition is not None:
            return under(source, statement, condition)
    return {}


def _calls_at(source: Source, finding: Finding) -> Iterator[cst.Call]:
    for call in source.calls():
        if finding.line in source.lines(call):
            yield call


def local_to_rank(call: cst.Call, kind: str) -> bool:
    """Say whether the arguments of a call only call what is known to be local to a rank."""
    names = LOCAL | STATES if kind in WHOLE else LOCAL
    found: list[cst.Call] = []

    class Calls(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802 - LibCST finds it by this name
            found.append(node)

    for arg in call.args:
        arg.visit(Calls())
    return all(last_name(inner.func) in names for inner in found)


def under(source: Source, statement: cst.SimpleStatementLine, condition: str) -> Edits:
    """Indent a statement under a condition; neighbours that are given the same one share it."""
    block = next(source.above(statement))

    def indent(node: cst.SimpleStatementLine) -> cst.If:
        inside = node.with_changes(leading_lines=[])
        return _Guarded(
            test=cst.parse_expression(condition), body=cst.IndentedBlock([inside]), leading_lines=node.leading_lines
        )

    edits: Edits = {statement: [indent], block: [_share]}
    return edits


class _Guarded(cst.If):
    """A condition that was put in here."""


def _share(block: cst.Module | cst.IndentedBlock) -> cst.CSTNode:
    body: list[cst.CSTNode] = []
    for node in block.body:
        before = body[-1] if body else None
        if isinstance(node, _Guarded) and isinstance(before, _Guarded) and node.test.deep_equals(before.test):
            first, *rest = node.body.body
            statements = [*before.body.body, first.with_changes(leading_lines=node.leading_lines), *rest]
            body[-1] = before.with_changes(body=before.body.with_changes(body=statements))
        else:
            body.append(node)
    return block.with_changes(body=body)
