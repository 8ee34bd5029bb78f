"""A script as rules see it: the full names that it uses, where it calls them, and what it passes to DDP."""

import ast
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from advisor.executor.own_modules import own_modules
from advisor.executor.script import DDP, ScriptFacts, imported, spelt_out
from advisor.rules.script import Script
from advisor.rules.source.value import Module

FullName = Callable[[ast.expr], str | None]
ASKED = ("isinstance", "issubclass")  # what a name is compared with there is not used
COMPILE = "torch.compile"


def script_of(script: str | os.PathLike[str], facts: ScriptFacts) -> Script:
    """Return what the sources of the script and of its own modules show; next to nothing after a syntax error.

    `lines` holds lines of the script itself. Of `torch.compile` they tell where it is called on a model: not as a
    decorator, and not on a function of the same file.
    """
    return uses_of(script, facts, own_modules(Path(script)) if facts.syntax_error is None else ())


def uses_of(script: str | os.PathLike[str], facts: ScriptFacts, modules: Sequence[Module]) -> Script:
    """Return the same from modules that have been parsed, the script's own first."""
    given: dict[str, Any] = {}
    uses: dict[str, None] = {}
    lines: dict[str, int] = {}
    for module in modules:
        full_name = functools.partial(spelt_out, names=dict(imported(module)))
        for name, line in _uses(module, full_name):
            uses[name] = None
            if module is modules[0]:
                lines[name] = min(line, lines.get(name, line))
        called = list(_calls(module, full_name))
        given = given or next((_constants(call) for name, call in called if name in DDP), {})
        if module is modules[0]:
            lines |= _lines_of_calls(module, called)
    kept = {name: line for name, line in lines.items() if line}
    return Script(path=os.fspath(script), kind=facts.kind, uses=tuple(uses), ddp_arguments=given, lines=kept)


def _uses(module: Module, full_name: FullName) -> Iterator[tuple[str, int]]:
    """Yield the longest full names that the code reads, save those it only compares types with."""
    inner = {id(node.value) for node in module.nodes if isinstance(node, ast.Attribute)}
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKED:
            inner.update(id(part) for argument in node.args for part in ast.walk(argument))
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in inner:
            name = full_name(node)
            if name is not None:
                yield name, node.lineno


def _calls(module: Module, full_name: FullName) -> Iterator[tuple[str, ast.Call]]:
    for node in module.nodes:
        name = full_name(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and name is not None:
            yield name, node


def _lines_of_calls(module: Module, calls: list[tuple[str, ast.Call]]) -> dict[str, int]:
    """Return the first line at which each name is called; 0 for `torch.compile` where that is on no model."""
    functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    no_models = {node.name for node in functions}
    decorators = {id(part) for node in functions for part in node.decorator_list}
    lines = {COMPILE: 0}
    for name, call in calls:
        target = call.args[0] if call.args else None
        function = isinstance(target, ast.Name) and target.id in no_models
        if name == COMPILE and (id(call) in decorators or target is None or function):
            continue
        lines[name] = min(call.lineno, lines.get(name) or call.lineno)
    return lines


def _constants(call: ast.Call) -> dict[str, Any]:
    """Return the keyword arguments of a call that are constants."""
    found = {}
    for keyword in call.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if keyword.arg is not None:
            found[keyword.arg] = value
    return found
