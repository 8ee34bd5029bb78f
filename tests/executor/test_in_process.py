"""What we do inside the user's process, and that it never stops training."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.executor.in_process import hooks
from advisor.executor.launch import WORKER

PLAN = {"bucket_cap_mb": 50.0, "gradient_as_bucket_view": True, "static_graph": False}


@pytest.mark.parametrize(
    ("script", "known", "given", "overridden", "kept"),
    [
        pytest.param(
            {}, PLAN, {"bucket_cap_mb": 50.0, "gradient_as_bucket_view": True}, {}, {}, id="script says nothing"
        ),
        pytest.param({"bucket_cap_mb": 50.0, "gradient_as_bucket_view": True}, PLAN, {}, {}, {}, id="the same"),
        pytest.param(
            {"bucket_cap_mb": 25, "gradient_as_bucket_view": False},
            PLAN,
            {"bucket_cap_mb": 50.0},
            {"bucket_cap_mb": 25},
            {"gradient_as_bucket_view": False},
            id="script disagrees",
        ),
        pytest.param(
            {"bucket_cap_mb_list": [5, 20], "gradient_as_bucket_view": True},
            PLAN,
            {},
            {},
            {"bucket_cap_mb_list": [5, 20]},
            id="a list of caps, beside which DDP ignores the cap",
        ),
        pytest.param({}, ["bucket_cap_mb"], {"bucket_cap_mb": 50.0}, {}, {}, id="a torch without that flag"),
    ],
)
def test_ddp_arguments(
    script: dict[str, Any], known: Any, given: dict[str, Any], overridden: dict[str, Any], kept: dict[str, Any]
) -> None:
    arguments = dict(script)
    assert hooks.settle(arguments, PLAN, known) == {"given": given, "overridden": overridden, "kept": kept}
    assert arguments == script | given


def test_a_plan_without_a_bucket_cap_leaves_that_of_the_script_or_of_ddp() -> None:
    for script in ({}, {"bucket_cap_mb": 100}, {"bucket_cap_mb": None}):
        arguments: dict[str, Any] = dict(script)
        settled = hooks.settle(arguments, PLAN | {"bucket_cap_mb": None, "gradient_as_bucket_view": False}, PLAN)
        assert (arguments, settled) == (script, {"given": {}, "overridden": {}, "kept": {}})


def test_act_that_fails_says_so_once_and_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    @hooks.failing_open
    def act(number: int) -> float:
        calls.append(number)
        return 1 / number

    assert [act(1), act(0), act(1)] == [1.0, None, None]
    assert calls == [1, 0]
    said = capsys.readouterr().err
    assert said.startswith("advisor: act failed and is off from here on, training goes on: ZeroDivisionError")
    assert said.count("\n") == 1


def test_script_runs_even_if_its_plan_can_not_be_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('trained', 'ADVISOR_PLAN' in os.environ)\nraise SystemExit(4)\n")
    environment = {"RANK": "0", "LOCAL_RANK": "0", "ADVISOR_PLAN": str(tmp_path / "run" / "plan.json")}
    command = [sys.executable, str(WORKER), str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("trained False\n", 4)
    assert done.stderr.startswith("advisor: the plan is not in effect and nothing is recorded: FileNotFoundError")
    assert done.stderr.count("\n") == 1
