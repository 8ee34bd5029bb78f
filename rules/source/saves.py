"""What a script writes to disk, and which ranks come there."""

from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.source import Source
from advisor.rules.source.value import LOCAL_RANK, LONE, RANK, Event, Value

BY_RANK = frozenset({RANK, LOCAL_RANK})
NODE_LOCAL = ("/tmp/", "/local", "/scratch", "/dev/shm", "/mnt/nvme", "/raid")
NO_FILE = ("io.BytesIO", "BytesIO", "tempfile.", "sys.stdout", "torch.distributed")


class Save(NamedTuple):
    event: Event
    path: Value | None
    content: Value | None

    @property
    def per_rank(self) -> bool:
        """Whether each rank writes a file of its own, as far as is known."""
        return self.path is not None and (bool(self.path.taint & (BY_RANK | {LONE})) or _made_of_rank(self.path))

    @property
    def guarded(self) -> bool:
        """Whether some condition on the rank, sure or not, lets only some ranks in."""
        return any(guard.taint & (BY_RANK | {LONE}) and guard.split for guard in self.event.guards)

    @property
    def text(self) -> str:
        """The beginning of the path, where it is written in the script."""
        if self.path is None:
            return ""
        return (
            self.path.const if isinstance(self.path.const, str) else self.path.name if self.path.role == "text" else ""
        )


def _made_of_rank(path: Value, depth: int = 0) -> bool:
    parts = (*path.args, *path.words.values(), *(path.items or ()), *(filter(None, [path.inner, path.owner])))
    return bool(path.taint & BY_RANK) or (depth < 3 and any(_made_of_rank(part, depth + 1) for part in parts))


def saves(source: Source) -> Iterator[Save]:
    """Yield the calls that write a checkpoint by `torch.save`."""
    for event in source.calls("torch.save"):
        path = event.argument("f", 1)
        to_memory = path is not None and path.name.startswith(NO_FILE)
        if event.reached and not event.alone and not to_memory:
            yield Save(event, path, event.argument("obj", 0))


def states_in(value: Value | None, depth: int = 0) -> Iterator[Value]:
    """Yield the models and optimizers whose state a saved object holds."""
    if value is None or depth > 3:
        return
    if value.role == "state" and value.inner is not None:
        yield value.inner
    parts = [*(value.items or ()), *value.attrs.values(), *value.options]
    for part in {id(part): part for part in parts}.values():
        yield from states_in(part, depth + 1)
