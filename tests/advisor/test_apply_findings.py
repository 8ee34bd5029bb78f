"""What `advisor apply` does about findings before it starts anything."""

import pytest

from advisor.commands.apply import codes, proposed_settings, refuse_errors
from advisor.probe.load import load_machine
from advisor.rules.catalog import RULES
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Finding
from advisor.rules.script_plan import script_plan

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


def test_trials_are_told_the_settings_that_rules_propose_by_what_nccl_logged() -> None:
    machine = load_machine("2x h200 nvswitch, 32 cores")
    plan = script_plan(machine)
    settings = proposed_settings(machine, RULES)
    log = "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/{}/0\n"
    assert settings(plan, "") == []
    assert settings(plan, "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n") == []
    assert settings(plan, log.format("Socket")) == [{"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}]
