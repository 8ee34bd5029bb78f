"""From a request to its reply."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from advisor.rules.errors import AdvisorError
from advisor.rules.profile import Precision, Profile
from advisor.trace.factory import Subject, refusal, subject
from advisor.trace.messages import Failure, Reply, Request
from advisor.trace.step import profile


def answer(request: Request) -> Reply:
    """Trace what is asked for, or say why it can't be."""
    try:
        found = subject(request.model, seq=request.seq, shape=request.shape)
        try:
            profiles = list(_profiles(found, request.precisions))
        except AdvisorError:
            raise
        except (Exception, SystemExit) as error:
            raise refusal(request.model, error) from error
    except AdvisorError as error:
        return Reply(failure=Failure(message=error.message, hint=error.hint))
    return Reply(profiles=tuple(profiles), assumptions=found.assumptions)


def _profiles(found: Subject, precisions: Iterable[Precision]) -> Iterator[Profile]:
    """Trace each precision; both 16-bit dtypes of autocast cost the same and are traced once."""
    done: dict[Precision, Profile] = {}
    for precision in precisions:
        traced: Precision = "bf16-autocast" if precision == "fp16-autocast" else precision
        if traced not in done:
            done[traced] = profile(found.make, found.batch, found.loss, traced, found.seq)
        yield structs.replace(done[traced], precision=precision)
