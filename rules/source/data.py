"""The loaders that a script trains from: how they share the data out, and in which loops they are used."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.source import Source
from advisor.rules.source.value import DIVERGENT, Class, Function, Loop, Value

KNOWS = re.compile(r"(?i)rank|world_?size|replica|shard|num_processes|process_index|split_by_node|nodesplitter")


class TrainingLoader(NamedTuple):
    value: Value
    source: Source
    batches: Loop | None  # the loop that draws from it
    epochs: Loop | None  # the loop around that one

    @property
    def dataset(self) -> Value | None:
        return self.value.argument("dataset", 0) or self.value.inner

    @property
    def _given(self) -> Value | None:
        words = self.value.words
        return words.get("sampler") or words.get("batch_sampler") or self.value.argument("sampler", 3)

    @property
    def sampler(self) -> Value | None:
        """The DistributedSampler, also one inside a batch sampler."""
        given = self._given
        for _ in range(3):
            if given is None or given.role == "sampler":
                return given
            given = given.argument("sampler", 0)
        return None

    @property
    def whole_data(self) -> bool:
        """Whether each rank surely draws all samples."""
        given, dataset = self._given, self.dataset
        if self.value.role != "loader" or "prepared" in self.value.attrs or dataset is None:
            return False
        if self.value.code is not None or any(word in self.value.words for word in ("**",)):
            return False
        if given is not None and not (given.role == "plain_sampler" or given.const is None):
            return False
        if given is not None and given.role == "plain_sampler" and self._by_rank(given):
            return False
        streams = dataset.words.get("streaming")
        if streams is not None and streams.const is not False:
            return False
        return dataset.role in ("dataset", "hf_dataset") and not self._by_rank(dataset)

    @property
    def whole_stream(self) -> bool:
        """Whether each rank surely reads the same stream."""
        dataset = self.dataset
        if self.value.role != "loader" or "prepared" in self.value.attrs or dataset is None or self._by_rank(dataset):
            return False
        if dataset.role == "hf_dataset":
            streams = dataset.words.get("streaming")
            return streams is not None and streams.const is True
        return dataset.role == "iterable" and isinstance(dataset.code, Class) and not _knows_ranks(dataset.code)

    @property
    def stream_begins(self) -> tuple[str, int]:
        """Where its stream is made: the loop in the dataset's `__iter__`, or the loader."""
        code = self.dataset.code if self.dataset is not None else None
        member = code.find("__iter__") if isinstance(code, Class) else None
        if member is not None and isinstance(member.code, Function):
            loops = (node for node in ast.walk(member.code.node) if isinstance(node, ast.For | ast.While))
            first = min(loops, key=lambda node: node.lineno, default=None)
            if first is not None:
                return member.code.module.path, first.lineno
        return self.value.file, self.value.line

    def _by_rank(self, value: Value, depth: int = 0) -> bool:
        """Say whether what the value was made from depends on the rank."""
        if value.taint & DIVERGENT or value.role in ("rank", "local_rank", "world_size", "split_dataset"):
            return True
        parts = [*value.args, *value.words.values(), *(value.items or ()), *([value.inner] if value.inner else ())]
        parts += value.attrs.values() if value.code is not None else ()
        return depth < 4 and any(self._by_rank(part, depth + 1) for part in parts)

    @property
    def shuffles(self) -> bool:
        shuffle = self.sampler.argument("shuffle", 3) if self.sampler else None
        return shuffle is None or shuffle.const is not False

    @property
    def told_epoch(self) -> bool:
        """Whether `set_epoch` is called on the sampler, or on something that may hold it."""
        return self.source.tells_epochs


def _knows_ranks(cls: Class) -> bool:
    """Say whether the class, or one it derives from, names anything that tells ranks apart."""
    words: set[str] = set()
    for own in cls.lineage():
        for node in ast.walk(own.node):
            name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
            words.update(filter(None, [name if isinstance(name, str) else None, _text(node)]))
    return any(KNOWS.search(word) for word in words)


def _text(node: ast.AST) -> str | None:
    return (
        node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 40 else None
    )


def training_loaders(source: Source) -> Iterator[TrainingLoader]:
    """Yield each loader that is drawn from in a loop with a backward pass."""
    seen: list[Value] = []
    training = set(source.training_loops)
    for draw in source.events:
        if draw.kind != "draw" or draw.receiver is None or draw.receiver in seen or draw.alone:
            continue
        batches = next((loop for loop in reversed(draw.loops) if loop in training), None)
        if batches is None or batches is not draw.loops[-1]:
            continue
        seen.append(draw.receiver)
        around = draw.loops[: draw.loops.index(batches)]
        if draw.name == "next":  # each iter() begins an epoch
            begun = [event.loops for event in source.calls("iter") if draw.receiver in event.args]
            around = next((loops for loops in begun if loops and loops[-1] in training), ())
        yield TrainingLoader(draw.receiver, source, batches, around[-1] if around else None)
