"""What `advisor check` says of one script or of several, as a stored value."""

from advisor.rules.machine import Value
from advisor.rules.plan import Finding


class Script(Value, frozen=True, kw_only=True):
    script: str
    kind: str


class Unread(Value, frozen=True, kw_only=True):
    script: str
    why: str


class Diff(Value, frozen=True, kw_only=True):
    """What --fix would change in a file, or has changed."""

    file: str
    diff: str


class Report(Value, frozen=True, kw_only=True):
    """`script` and `kind` are those of the only script; of several, `scripts` has them."""

    version: int = 1
    script: str | None
    kind: str | None
    findings: tuple[Finding, ...]
    scripts: tuple[Script, ...]
    unread: tuple[Unread, ...] = ()
    fixed: int = 0  # findings that --fix has mended before
    fixes: tuple[Diff, ...] = ()

    @property
    def errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)
