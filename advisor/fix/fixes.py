"""Which findings are corrected by us, and how: a file with all of them made at once."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import libcst as cst

from advisor.fix.arguments import bucket_view, map_location
from advisor.fix.guard import guard
from advisor.fix.loggers import disable_bar, disable_tracker, lone_writer
from advisor.fix.set_epoch import set_epoch
from advisor.fix.source import Edits, Source
from advisor.rules.plan import Finding

Fix = Callable[[Source, Finding, str], Edits]
# By the rule's name. A fix returns no edits where it is not sure that the script stays right.
FIXES: dict[str, tuple[Fix, ...]] = {
    "gradients-kept-twice": (bucket_view,),
    "logged-by-all-ranks": (disable_bar, guard),
    "loaded-onto-the-first-gpu": (map_location,),
    "saved-by-all-ranks": (guard,),
    "set-epoch-missing": (set_epoch,),
    "tracker-on-all-ranks": (disable_tracker, lone_writer),
}


class Fixed(NamedTuple):
    content: bytes
    findings: tuple[Finding, ...]  # those that are corrected in it


def fix(content: bytes, findings: Iterable[Finding], kind: str) -> Fixed:
    """Correct what can be corrected safely in a file of a script of this kind."""
    fixable = [finding for finding in findings if finding.name in FIXES and finding.line is not None]
    try:
        source = Source(content) if fixable else None
    except (cst.ParserSyntaxError, UnicodeDecodeError, RecursionError):
        source = None
    if source is None or not source.exact:
        return Fixed(content, ())
    edits: Edits = {}
    made: set[tuple[Fix, cst.CSTNode]] = set()
    done = []
    for finding in fixable:
        way, found = _first(source, finding, kind)
        if way is None:
            continue
        done.append(finding)
        place = (way, next(iter(found)))
        if place not in made:  # two findings may ask for the same
            made.add(place)
            for node, changes in found.items():
                known = edits.setdefault(node, [])
                known += [change for change in changes if change not in known]
    return Fixed(source.with_edits(edits), tuple(done))


def _first(source: Source, finding: Finding, kind: str) -> tuple[Fix | None, Edits]:
    """Return the first of the ways that can be gone, with its edits."""
    for way in FIXES[finding.name]:
        if edits := way(source, finding, kind):
            return way, edits
    return None, {}
