"""What `advisor apply` does about findings before it starts anything."""

import pytest

from advisor.commands.apply import codes, refuse_errors
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Finding

BAD = Finding(code="NET199", name="cable-cut", severity="error", message="the cable is cut", remedy="mend the cable")
SLOW = Finding(code="NET198", name="cable-thin", severity="warning", message="the cable is thin", remedy="thicken it")


def test_an_error_stops_the_run_and_says_what_to_do_and_how_to_start_all_the_same() -> None:
    with pytest.raises(AdvisorError) as caught:
        refuse_errors([SLOW, BAD], force=())
    assert "NET199: the cable is cut" in caught.value.message
    assert "thin" not in caught.value.message
    assert "mend the cable" in caught.value.hint
    assert "--force NET199" in caught.value.hint


def test_what_the_user_forces_and_what_only_warns_stops_nothing() -> None:
    refuse_errors([SLOW, BAD], force=codes("net199, MEM101"))
    refuse_errors([SLOW], force=())
