"""What a script does, for rules: the events of a walk, and questions that several rules ask of them."""

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence

from advisor.rules.errors import AdvisorError
from advisor.rules.source import calls, collectives
from advisor.rules.source.known_names import FSDP2
from advisor.rules.source.modules import modules_of
from advisor.rules.source.value import Class, Event, Function, Loop, Module, Value
from advisor.rules.source.walk import Walk


class Source:
    """A training script that has been read; nothing here changes once it is made."""

    def __init__(self, script: str, modules: Sequence[Module], events: list[Event]) -> None:
        self.script = script
        self.modules = modules
        self.events = events

    def text(self, file: str, line: int) -> str:
        """Quote a line."""
        return self.line(file, line).strip()

    def line(self, file: str, line: int) -> str:
        """Return a line as it is, indented."""
        module = next((module for module in self.modules if module.path == file), None)
        return module.lines[line - 1] if module and 0 < line <= len(module.lines) else ""

    def calls(self, *names: str) -> Iterator[Event]:
        """Yield calls by the full name of what is called, or its role and method: `<optimizer>.step`."""
        if len(names) == 1:
            return iter(self._by_name.get(names[0], ()))
        found = [event for name in dict.fromkeys(names) for event in self._by_name.get(name, ())]
        return iter(sorted(found, key=lambda event: event.index))

    @functools.cached_property
    def _by_name(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            if event.kind == "call":
                found.setdefault(event.name, []).append(event)
        return found

    @functools.cached_property
    def backwards(self) -> list[Event]:
        return [
            event
            for event in self.events
            if event.kind == "call"
            and event.name.endswith((".backward", ".manual_backward"))
            and "own." not in event.name
        ]

    @functools.cached_property
    def averages_gradients(self) -> bool:
        """Whether ranks train one model together, by a wrapper of torch's or by hand."""
        wraps = any(event.value.role in ("ddp", "fsdp", "fsdp2") for event in self.events if event.kind == "call")
        return wraps or bool(self.reduced_by_hand)

    @functools.cached_property
    def reduced_by_hand(self) -> list[Event]:
        """The calls that average gradients without a wrapper: `dist.all_reduce(p.grad)`."""
        reduced = [event for event in self.calls("torch.distributed.all_reduce") if event.args]
        return [event for event in reduced if any(_gradient(node) for node in _steps_to(event.args[0]))]

    def reads(self, variable: str) -> bool:
        """Say whether the script reads a variable of the environment."""
        words = (node for module in self.modules for node in module.nodes if isinstance(node, ast.Constant))
        return any(node.value == variable for node in words)

    @functools.cached_property
    def collectives(self) -> list[Event]:
        """The calls that hang unless all ranks make them."""
        return [e for e in self.events if e.kind == "call" and collectives.is_collective(self, e)]

    @functools.cached_property
    def tells_epochs(self) -> bool:
        """Whether `set_epoch` is called on anything."""
        return any(event.name.rpartition(".")[2] == "set_epoch" for event in self.events)

    @functools.cached_property
    def many_ranks(self) -> bool:
        """Whether the script is made to run as several ranks that know of each other."""
        roles = ("ddp", "fsdp", "fsdp2", "engine", "prepared")
        starts = any(not event.alone for event in self.calls("torch.distributed.init_process_group"))
        return starts or any(event.value.role in roles for event in self.events if event.kind == "call")

    @functools.cached_property
    def wraps(self) -> list[Event]:
        """The calls that make a model one of many ranks'."""
        roles = ("ddp", "fsdp", "engine", "prepared")  # fully_shard changes the model that another call made
        made = [event for event in self.events if event.kind == "call" and event.value.node is event.node]
        found = [event for event in made if event.value.role in roles]
        return sorted([*found, *self.calls(FSDP2)], key=lambda event: event.index)

    def wrapped_backward(self, event: Event) -> bool:
        """Say whether a backward pass reduces gradients over ranks."""
        return self.averages_gradients and not self.reduced_by_hand and not event.inside("no_sync")

    @functools.cached_property
    def training_loops(self) -> list[Loop]:
        """The loops in which a backward pass is run, outermost first for each."""
        return list(dict.fromkeys(loop for event in self.backwards for loop in event.loops))


def _gradient(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _steps_to(value: Value) -> Iterator[ast.AST | None]:
    """Yield the node of a value, and that of the attribute it is of: `p.grad.data`."""
    yield value.node
    if isinstance(value.node, ast.Attribute):
        yield value.node.value


def read_source(script: str, files: Mapping[str, str]) -> Source:
    """Read a script and the modules of its own, given as path -> text; raise an AdvisorError where it can't be."""
    return source_of(modules_of(script, files))


def source_of(modules: Sequence[Module]) -> Source:
    """Walk a script, the first of the modules, and what it calls in the others."""
    main = modules[0]
    walk = Walk({module.name: module for module in modules})
    main.globals["__name__"] = Value(const="__main__")
    try:
        walk.run(main)
        _leftovers(walk, main)
    except RecursionError as error:
        hint = "split it into smaller functions"
        raise AdvisorError(f"{main.path} is nested too deeply to be read", hint) from error
    return Source(main.path, modules, walk.events)


def _leftovers(walk: Walk, main: Module) -> None:
    """Walk what a library calls, or nobody: functions and methods of the script that the walk has not come to."""
    walk.module_now, walk.reached = main, False
    named = {node.attr for node in main.nodes if isinstance(node, ast.Attribute)}
    named |= {node.id for node in main.nodes if isinstance(node, ast.Name)}
    values = [value for value in main.globals.values() if value.code is not None and value.code.module is main]
    for value in sorted(values, key=lambda value: value.name in named):  # those that others call, last
        if value.role == "class" and isinstance(value.code, Class):
            _walk_methods(walk, value.code, named)
        elif isinstance(value.code, Function) and value.code.node not in walk.seen:
            calls.follow(walk, value.code.node, value, (), {})


def _walk_methods(walk: Walk, cls: Class, named: set[str]) -> None:
    members = [member for member in cls.names.values() if isinstance(member.code, Function)]
    left = [m for m in members if m.code is not None and m.code.node not in walk.seen and m.name != "__init__"]
    if not left or len(left) < len(members) - 1:  # some were called: what was not, is not used
        return
    made = calls.instance(walk, cls.node, cls, (), {})
    for member in sorted(left, key=lambda member: member.name in named):
        if member.code is not None and member.code.node not in walk.seen:
            calls.follow(walk, cls.node, member, (made,), {})
