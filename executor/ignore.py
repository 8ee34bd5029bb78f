"""Findings that a comment of the script silences: `# advisor: ignore[SCR103]` on the line, or on its statement."""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.rules.plan import Finding

COMMENT = re.compile(r"#\s*advisor:\s*ignore(?:\s*\[([^\]]*)\]|(?!\s*[\w\[]))", re.IGNORECASE)
EVERYTHING = "*"  # what a comment without codes silences


def heeded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings but those that a comment on their line silences, by code or by name."""
    read: dict[str, dict[int, frozenset[str]]] = {}
    kept = []
    for finding in findings:
        words: frozenset[str] = frozenset()
        if finding.file is not None and finding.line is not None:
            if finding.file not in read:
                read[finding.file] = silenced(Path(finding.file))
            words = read[finding.file].get(finding.line, words)
        if not words & {EVERYTHING, finding.code.lower(), finding.name.lower()}:
            kept.append(finding)
    return tuple(kept)


def silenced(path: Path) -> dict[int, frozenset[str]]:
    """Say for each line of a file what the comments on its statement silence; nothing where it can't be read."""
    try:
        source = path.read_bytes()
    except OSError:
        return {}
    if b"advisor:" not in source:
        return {}
    found: dict[int, frozenset[str]] = {}
    for lines, comments in _statements(source):
        words = {word for comment in comments for word in _words(comment)}
        if words:
            found |= {line: found.get(line, frozenset()) | words for line in lines}
    return found


def _words(comment: str) -> Iterator[str]:
    for match in COMMENT.finditer(comment):
        if match[1] is None:
            yield EVERYTHING
        else:
            yield from (word.strip().lower() for word in match[1].split(",") if word.strip())


def _statements(source: bytes) -> Iterator[tuple[range, list[str]]]:
    """Yield the lines of each statement, of a compound one those of its head, with the comments on them."""
    first, last, comments = 0, 0, list[str]()
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                comments.append(token.string)
            elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                yield range(first, last + 1), comments
                first, comments = 0, []
            elif token.type == tokenize.NL and not first:
                comments = []  # a comment that stands alone
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING):
                first, last = first or token.start[0], token.end[0]
    except (tokenize.TokenError, SyntaxError):  # python says what is wrong with the file
        return
