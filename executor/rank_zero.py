"""States of models and optimizers that a script takes on rank 0 alone, seen in its source.

That hangs once the model is sharded: then `state_dict()` gathers from all ranks.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

RANK = r"\b\w*rank\w*[\"')(\]]*"  # rank, get_rank(), int(os.environ["RANK"])
MAIN = r"(is_)?(main|master)(_process|_rank)?\b|\bis_(global_|local_)?(rank_?)?zero\b"
FIRST_RANK = re.compile(rf"(?i){RANK}\s*==\s*0\b|\bnot\s+[\w.]*{RANK}$|^[\w.]*?\b({MAIN})(\(\))?$")
OTHER_RANKS = re.compile(rf"(?i){RANK}\s*(!=|>)\s*0\b|^not\s+[\w.]*?\b({MAIN})")
DEPTH = 3  # calls followed into functions of the same file

FullName = Callable[[ast.expr], str | None]


def lone_states(module: ast.Module, full_name: FullName, wrappers: Collection[str]) -> list[int]:
    """Return the lines where rank 0 alone calls `state_dict()` of what a wrapper such as DDP holds, or of an optimizer.

    `full_name` spells out what a call names; `wrappers` are the full names of those that are given the model first.
    """
    held = _held(module, full_name, wrappers)
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    lines: set[int] = set()
    for statements in _on_first_rank(module):
        lines.update(_states(statements, held, functions, DEPTH))
    return sorted(lines)


def _held(module: ast.Module, full_name: FullName, wrappers: Collection[str]) -> set[str]:
    """Name what holds a wrapped model, the model inside, or an optimizer, wherever in the file."""
    held: set[str] = set()
    for node in ast.walk(module):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        name = full_name(node.value.func) or ""
        if name in wrappers or (name.startswith("torch.optim.") and "scheduler" not in name):
            held.update(map(ast.unparse, targets))
        if name in wrappers and node.value.args:
            held.add(ast.unparse(node.value.args[0]))
    assigned = [node for node in ast.walk(module) if isinstance(node, ast.Assign)]
    for _ in range(DEPTH):  # raw = model.module if distributed else model
        for node in assigned:
            values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            if any(_object(value) in held for value in values):
                held.update(map(ast.unparse, node.targets))
    return held


def _object(node: ast.expr) -> str:
    return ast.unparse(node).removesuffix(".module")


def _on_first_rank(module: ast.Module) -> Iterator[Sequence[ast.stmt]]:
    """Yield the statements that rank 0 alone comes to."""
    for node in ast.walk(module):
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            if OTHER_RANKS.search(test):
                yield node.orelse
            elif FIRST_RANK.search(test) and " or " not in test:
                yield node.body
        for field in ("body", "orelse"):
            block: Any = getattr(node, field, None)
            for i, statement in enumerate(block if isinstance(block, list) else ()):
                if _sends_others_away(statement):
                    yield block[i + 1 :]


def _sends_others_away(statement: ast.stmt) -> bool:
    """Recognise `if rank != 0: return`."""
    leaves = (ast.Return, ast.Continue)
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.body[-1], leaves)
        and OTHER_RANKS.search(ast.unparse(statement.test)) is not None
    )


def _states(
    statements: Sequence[ast.AST], held: Collection[str], functions: dict[str, ast.FunctionDef], depth: int
) -> Iterator[int]:
    for call in (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call)):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "state_dict":
            if _object(function.value) in held:
                yield call.lineno
        elif isinstance(function, ast.Name) and function.id in functions and depth:
            called = functions[function.id]
            names = [argument.arg for argument in called.args.args]
            given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
            inside = {name for name, value in given if name and _object(value) in held}
            globally = {name for name in held if name not in names}
            yield from _states(called.body, inside | globally, functions, depth - 1)
