"""A rank whose step fails goes on to the next one, the others wait for it.

## What it finds
A forward or backward pass on several ranks inside `try`, within the loop, whose handler neither raises nor ends the
loop.

## Why it matters
Out of memory on one rank: it skips its backward pass and comes to the next step's reduction, the others are still in
this one's. Gradients are mixed between steps, or the job hangs.

## What to do
Let the exception end the job, and restart from a checkpoint (`torchrun --max-restarts`); or have all ranks agree first,
with an `all_reduce` of a flag, whether to skip.

## Source
https://github.com/facebookresearch/fairseq/issues/708; torch.distributed, "Monitoring barrier"
"""

import ast
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.value import Event

RULE = ("SCR143", "failed-step-skipped")
HARMLESS = ("KeyboardInterrupt", "StopIteration", "SystemExit", "ImportError")
ENDS = (ast.Raise, ast.Break, ast.Return)
ENDING_CALLS = ("exit", "_exit", "abort", "kill")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    seen: set[tuple[str, int]] = set()
    for event in source.collectives:
        if not event.name.endswith((".backward", "all_reduce")) or event.alone:
            continue
        for handler in _swallowing(event):
            at = (event.file, handler.lineno)
            if at in seen:
                continue
            seen.add(at)
            yield found(
                case,
                RULE,
                "warning",
                at,
                happens=f"a rank whose step fails goes on alone; the others wait in the reduction of line {event.line}",
                remedy="raise here, and restart from a checkpoint; or all_reduce a flag so that all ranks skip it",
                step=event.line,
            )


def _swallowing(event: Event) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers of exceptions in a step, in its own file, that let the loop go on."""
    loops = [loop for loop in event.loops if loop.file == event.file]
    for statement in event.tries:
        end = statement.end_lineno or statement.lineno
        around = any(loop.line < statement.lineno and end <= getattr(loop.node, "end_lineno", 0) for loop in loops)
        here = statement.lineno <= event.line <= end
        for handler in statement.handlers if around and here else ():
            if not _ends(handler) and not any(name in HARMLESS for name in _caught(handler)):
                yield handler


def _caught(handler: ast.ExceptHandler) -> list[str]:
    nodes = ast.walk(handler.type) if handler.type is not None else ()
    return [name for node in nodes if (name := getattr(node, "id", None) or getattr(node, "attr", None))]


def _ends(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ENDS):
            return True
        if isinstance(node, ast.Call):
            name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
            if name in ENDING_CALLS or "reduce" in name or "broadcast" in name:
                return True
    return False
