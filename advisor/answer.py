"""What a command gives back: `cli.main` prints it, nobody else does."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from advisor.rules.machine import Value

if TYPE_CHECKING:
    from rich.console import RenderableType


class Proposal(NamedTuple):
    """What a command would do next, if the user agrees."""

    question: str
    agreed: bool  # the options say so already
    do: "Callable[[], Answer]"


class Answer(NamedTuple):
    """A stored value, and how to show it. The renderers import rich, so they run only when text is wanted."""

    code: int
    document: Value
    report: "Callable[[], RenderableType]"
    verdict: "Callable[[], RenderableType]"
    to_stderr: bool = False  # where stdout belongs to the user's script
    files: Mapping[str, Callable[[], bytes]] = MappingProxyType({})  # what else can be written: ".svg" -> its content
    plain: Callable[[], str] | None = None  # takes the report's place: lines for other programs, written as they are
    proposal: Proposal | None = None
