"""What the walk knows of a value in the script, of a condition it stands under, and of a thing that happens.

A value has identity: two names for one model hold one `Value`. What is not known stays empty; rules then say nothing.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
NOTHING: frozenset[str] = frozenset()
# How a value may differ between ranks. "reduced" says that a collective has made it equal.
RANK, LOCAL_RANK, LONE, DATA, CLOCK, REDUCED = "rank", "local rank", "lone", "data", "clock", "reduced"
DIVERGENT = frozenset({RANK, LOCAL_RANK, LONE, DATA, CLOCK})
WRAPPED = ("ddp", "fsdp", "fsdp2", "dp", "engine", "prepared")  # roles of models that hold or act for another
SHARDED = ("fsdp", "fsdp2")


@dataclass(eq=False, slots=True)
class Value:
    role: str = ""  # what it is in training: rank, model, ddp, optimizer, loader, ...; "" is unknown
    name: str = ""  # full name of what it is, or of what a call made it with
    node: ast.AST | None = None
    file: str = ""
    const: Any = UNKNOWN
    taint: frozenset[str] = NOTHING
    split: str = (
        ""  # as a condition, the ranks it is true on: first, others, some; distributed, alone: runs it is true in
    )
    partly: bool = False  # as a condition, something else decides as well: its opposite says nothing of ranks
    inner: "Value | None" = None  # the model that is wrapped, the dataset of a loader, the owner of parameters
    attrs: dict[str, "Value"] = field(default_factory=dict)
    items: "list[Value] | None" = None
    args: "tuple[Value, ...]" = ()  # of the call that made it
    words: "dict[str, Value]" = field(default_factory=dict)
    code: "Function | Class | None" = None
    owner: "Value | None" = None  # what it is a method or an attribute of
    options: "tuple[Value, ...]" = ()  # what it may be, after a branch

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def known(self) -> bool:
        return self.const is not UNKNOWN

    def argument(self, word: str, position: int | None = None) -> "Value | None":
        """Return what was passed to the call that made it."""
        given = self.words.get(word)
        if given is None and position is not None and position < len(self.args):
            given = self.args[position]
        return given

    def layers(self) -> "Iterator[Value]":
        """Yield itself, then what it wraps, outermost first."""
        seen: list[Value] = []
        value: Value | None = self
        while value is not None and value not in seen and len(seen) < 8:
            seen.append(value)
            yield value
            value = value.inner if value.role in (*WRAPPED, "compiled", "view", "model") else None

    def is_a(self, *roles: str) -> bool:
        """Say whether it, what it wraps, or one of what it may be, has one of the roles."""
        return any(layer.role in roles for option in (self, *self.options) for layer in option.layers())

    @property
    def core(self) -> "Value":
        """The model inside of all wrappers."""
        *_, last = self.layers()
        return last

    def changed(self, **fields: Any) -> "Value":
        return replace(self, **fields)


class Given(NamedTuple):
    """What a call is given, and where it stands."""

    node: ast.Call
    receiver: Value | None
    args: tuple[Value, ...]
    words: dict[str, Value]


@dataclass(eq=False, slots=True)
class Module:
    """A file of the script's own."""

    path: str
    name: str  # dotted, from the script's folder
    tree: ast.Module
    lines: list[str]
    nodes: list[ast.AST]  # of the tree, in the order of the source
    globals: dict[str, Value] = field(default_factory=dict)
    ready: bool = False


@dataclass(eq=False, slots=True)
class Scope:
    names: dict[str, Value]
    module: Module
    outer: "Scope | None" = None
    globals_used: set[str] = field(default_factory=set)
    returned: list[Value] = field(default_factory=list)
    guards: int = 0  # how many the function was entered under
    loops: int = 0  # how many it was entered in


@dataclass(eq=False, slots=True)
class Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    scope: Scope | None  # it was defined in
    owner: "Class | None" = None

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "lambda")


@dataclass(eq=False, slots=True)
class Class:
    node: ast.ClassDef
    module: Module
    scope: Scope
    bases: list[Value]
    names: dict[str, Value]
    role: str = ""

    def find(self, name: str) -> Value | None:
        """Look a name up in the class and in those of its bases that are the script's own."""
        for cls in self.lineage():
            if name in cls.names:
                return cls.names[name]
        return None

    def lineage(self) -> "list[Class]":
        found: list[Class] = []
        waiting = [self]
        while waiting and len(found) < 20:
            cls = waiting.pop(0)
            if cls not in found:
                found.append(cls)
                waiting += [base.code for base in cls.bases if isinstance(base.code, Class)]
        return found


@dataclass(eq=False, slots=True)
class Guard:
    """A condition that must hold, or an exception that must have been raised, for a thing to happen."""

    node: ast.AST
    file: str
    value: Value
    split: str
    negated: bool = False  # it is the other branch
    rest: bool = False  # of what stands behind `if ...: return`
    handler: bool = False

    @property
    def taint(self) -> frozenset[str]:
        return self.value.taint

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def is_main(self) -> bool:
        """Whether it is `if __name__ == "__main__"`."""
        test = self.node
        return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"

    @property
    def by_rank(self) -> bool:
        """Whether ranks go different ways by their number."""
        return self.split in ("first", "others", "some", "unsure") and bool(self.taint & {RANK, LOCAL_RANK, LONE})


@dataclass(eq=False, slots=True)
class Loop:
    node: ast.AST
    file: str
    over: Value | None  # what it runs over; None for `while`

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def loader(self) -> Value | None:
        return self.over if self.over is not None and self.over.role == "loader" else None


@dataclass(eq=False, slots=True)
class Event:
    """Something that happens: "call", "assign" (an attribute or an item), "draw" (a loader), "leave" (a loop)."""

    kind: str
    name: str
    node: ast.AST
    file: str
    index: int
    value: Value  # result of the call, what is assigned, what is drawn
    receiver: Value | None = None
    args: tuple[Value, ...] = ()
    words: dict[str, Value] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    loops: tuple[Loop, ...] = ()
    contexts: tuple[Value, ...] = ()
    tries: tuple[ast.Try, ...] = ()
    left: Loop | None = None  # by a "leave"
    by_rank: Guard | None = None  # the innermost condition by which only some ranks come here
    alone: bool = False  # it happens only in a run of one process
    reached: bool = True  # from the script's first line; who calls the others is not known
    calls: tuple[ast.AST, ...] = ()  # calls of the script's own functions that lead here

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    def argument(self, word: str, position: int | None = None) -> Value | None:
        given = self.words.get(word)
        if given is None and position is not None and position < len(self.args):
            given = self.args[position]
        return given

    @property
    def in_handler(self) -> bool:
        return any(guard.handler for guard in self.guards)

    def inside(self, name: str) -> bool:
        """Say whether this happens in `with NAME(...)`."""
        return any(context.name == name or context.name.endswith("." + name) for context in self.contexts)
