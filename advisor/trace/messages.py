"""What the command line asks of the tracing process, and what it gets back. Imports no torch."""

from advisor.rules.machine import Value
from advisor.rules.plan import Assumption
from advisor.rules.profile import Precision, Profile


class Request(Value, frozen=True, kw_only=True):
    model: str  # module:factory, or a config.json or its folder
    precisions: tuple[Precision, ...]
    seq: int | None = None  # tokens of a sample
    shape: tuple[int, ...] | None = None  # of one sample of floats


class Failure(Value, frozen=True, kw_only=True):
    """What an AdvisorError says."""

    message: str
    hint: str


class Reply(Value, frozen=True, kw_only=True):
    profiles: tuple[Profile, ...] = ()  # one for each precision
    assumptions: tuple[Assumption, ...] = ()  # what was guessed of the model's input
    failure: Failure | None = None
