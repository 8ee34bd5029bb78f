"""Correct a shuffle that is the same in each epoch: tell the sampler the epoch, first thing in its loop."""

import re
from collections.abc import Iterator

import libcst as cst

from advisor.fix.source import Edit, Edits, Source, last_name
from advisor.rules.plan import Finding

SAMPLER = re.compile(r"(?:[\w.]*\.)?DistributedSampler\(")
AROUND = ("enumerate", "tqdm", "iter", "islice", "track", "list", "zip")  # what a loader is passed through


def set_epoch(source: Source, finding: Finding, kind: str) -> Edits:
    """Put `sampler.set_epoch(epoch)` at the head of the epoch loop."""
    for loop in _epoch_loops(source, finding):
        sampler = _sampler(source, loop)
        epoch, edits = _epoch(source, loop)
        if sampler is not None and epoch is not None:
            return edits | {loop.body: [_beginning(f"{sampler}.set_epoch({epoch})")]}
    return {}


def _beginning(code: str) -> Edit:
    line = cst.parse_statement(code)
    return lambda block: block.with_changes(body=[line, *block.body])


def _epoch_loops(source: Source, finding: Finding) -> Iterator[cst.For]:
    """Yield the loop that the finding names, else those over a range that hold a loop over a loader."""
    named = finding.facts.get("epoch_loop", finding.line)
    loops = [loop for loop in source.loops() if isinstance(loop.body, cst.IndentedBlock)]
    at = [loop for loop in loops if source.lines(loop)[0] == named]
    around = [loop for inner in at for loop in source.above(inner) if isinstance(loop, cst.For)]
    yield from around  # the finding may stand on the loop over the loader
    yield from at
    yield from (loop for loop in loops if source.code(loop.iter).startswith("range(") and _loaders(source, loop))


def _sampler(source: Source, loop: cst.For) -> str | None:
    """Spell the sampler as the loop sees it: the only one that is bound there, else the loader's."""
    function = _function(source, loop)
    names = {
        source.code(target)
        for target, value, statement in source.assignments()
        if SAMPLER.search(source.code(value)) and not _DATA.search(source.code(value))
        if _function(source, statement) in (function, None) and source.lines(statement)[0] < source.lines(loop)[0]
    }
    loaders = _loaders(source, loop)
    of_loaders = {f"{loader}.sampler" for loader in loaders}
    if len(names) == 1:
        return names.pop()
    used = {name for name in names for loader in loaders if name in _made_of(source, loader)}
    if len(used) == 1:
        return used.pop()
    return of_loaders.pop() if len(of_loaders) == 1 and not names else None


_DATA = re.compile(r"DataLoader\(")


def _made_of(source: Source, loader: str) -> str:
    """Return the code that made a loader."""
    made = [source.code(value) for target, value, _ in source.assignments() if source.code(target) == loader]
    return " ".join(made)


def _loaders(source: Source, loop: cst.For) -> list[str]:
    """Spell what the loops directly inside run over, where that is a name."""
    found = []
    for inner in source.loops():
        outer = next((node for node in source.above(inner) if isinstance(node, cst.For | cst.While)), None)
        if outer is loop:
            over = inner.iter
            while isinstance(over, cst.Call) and last_name(over.func) in AROUND and over.args:
                over = over.args[0].value
            if isinstance(over, cst.Name | cst.Attribute):
                found.append(source.code(over))
    return found


def _function(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    return next((above for above in source.above(node) if isinstance(above, cst.FunctionDef)), None)


def _epoch(source: Source, loop: cst.For) -> tuple[str | None, Edits]:
    """Return the name of the loop's variable; one that is thrown away is given a name."""
    if not isinstance(loop.target, cst.Name) or not source.code(loop.iter).startswith("range("):
        return None, {}
    if loop.target.value != "_":
        return loop.target.value, {}
    if re.search(r"\bepoch\b", source.code(loop)):
        return None, {}
    return "epoch", {loop.target: [lambda target: target.with_changes(value="epoch")]}
