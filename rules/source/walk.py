"""Walks a script in the order in which it runs, from its first line into the functions that it calls.

Nothing is executed: names are bound to what is known of their values, both branches of each condition are taken, and a
loop's body is walked twice, silently first, so that the second time shows what one iteration leaves to the next.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from advisor.rules.source import branches, conditions, expressions, statements
from advisor.rules.source.value import (
    CLOCK,
    LOCAL_RANK,
    NOTHING,
    RANK,
    Event,
    Guard,
    Loop,
    Module,
    Scope,
    Value,
)

TAINTS = {"rank": frozenset({RANK}), "local_rank": frozenset({LOCAL_RANK}), "clock": frozenset({CLOCK})}


class Walk:
    """The state of the walk: where it is, and what has happened so far."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.events: list[Event] = []
        self.guards: tuple[Guard, ...] = ()
        self.loops: tuple[Loop, ...] = ()
        self.contexts: tuple[Value, ...] = ()
        self.tries: tuple[ast.Try, ...] = ()
        self.calls: tuple[ast.AST, ...] = ()
        self.active: list[ast.AST] = []  # functions that are being walked
        self.walked: dict[ast.AST, int] = {}
        self.results: dict[ast.AST, Value] = {}
        self.seen: set[ast.AST] = set()  # functions that have been walked
        self.silent = 0
        self.reached = True
        self.depth = 0
        self.steps = 0
        self.module_now: Module | None = None

    # What happens ------------------------------------------------------------------------------------------------

    @property
    def file(self) -> str:
        return self.module_now.path if self.module_now else ""

    def emit(self, kind: str, name: str, node: ast.AST, value: Value, **more: Any) -> None:
        if self.silent:
            return
        event = Event(kind, name, node, self.file, len(self.events), value, **more)
        event.guards, event.loops, event.contexts = self.guards, self.loops, self.contexts
        event.tries, event.calls, event.reached = self.tries, self.calls, self.reached
        if self.guards:
            event.by_rank = next((guard for guard in reversed(self.guards) if guard.by_rank), None)
            event.alone = any(guard.split == "alone" for guard in self.guards)
        self.events.append(event)

    def make(self, node: ast.AST | None, role: str = "", **fields: Any) -> Value:
        if role in TAINTS:
            fields["taint"] = fields.get("taint", NOTHING) | TAINTS[role]
        return Value(role=role, node=node, file=self.file, **fields)

    @contextmanager
    def under(self, guard: Guard) -> Iterator[None]:
        before = self.guards
        self.guards = (*before, guard)
        try:
            yield
        finally:
            self.guards = before

    @contextmanager
    def silently(self) -> Iterator[None]:
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    def guard(self, node: ast.AST, value: Value, *, negated: bool = False, rest: bool = False) -> Guard:
        value = conditions.as_condition(value)
        split = branches.opposite(value) if negated else value.split
        return Guard(node, self.file, value, split, negated, rest)

    # Statements --------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Walk statements; those behind `if rank != 0: return` stand under the opposite condition."""
        before = self.guards
        self.depth += 1
        try:
            if self.depth > expressions.DEEPEST:
                return
            for statement in body:
                handler = statements.STATEMENTS.get(type(statement))
                if handler is not None:
                    handler(self, statement, scope)
                if isinstance(statement, statements.LEAVES):
                    break
        finally:
            self.depth -= 1
            self.guards = before

    def run(self, module: Module) -> None:
        """Walk a module's statements, once."""
        if module.ready:
            return
        module.ready = True
        outside, self.module_now = self.module_now, module
        try:
            self.block(module.tree.body, Scope(module.globals, module))
        finally:
            self.module_now = outside

    def value_of(self, node: ast.expr | None, scope: Scope) -> Value:
        return expressions.evaluate(self, node, scope)
