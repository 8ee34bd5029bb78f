"""Measured links in `advisor probe` and `advisor recommend`: shown, saved, and used."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from advisor import cli
from advisor.executor.machine_store import keep_links, keep_run, recall
from advisor.probe.load import load_machine
from advisor.rules.calibration import HostCopies, MeasuredGroup
from advisor.rules.fabric import Collective, Op
from advisor.rules.identity import identity_of
from advisor.rules.machine import Machine, Unknown
from advisor.rules.measurements import Links, Measurements, RunRatio, collective_of

FIXTURE = Path(__file__).parents[2] / "fixtures/machines/2xh200-nv18.json"
DAY = "2026-11-30T10:00:00+00:00"
JOB = ["--params", "1.3e9", "--global-batch", "16", "--only", "ddp", "--gpus", "2"]


def slow_links() -> Links:
    """Make links that are far slower than NVLink."""
    ops: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter")
    costs: dict[Op, Collective] = {op: collective_of(op, 2, [(65536, 1e-3), (2**28, 1.0)]) for op in ops}
    return Links(
        date=DAY,
        seconds=3.2,
        groups=(MeasuredGroup(gpus=("GPU0", "GPU1"), collectives=costs),),
        host_copies=HostCopies(to_gpu=5e10, from_gpu=4e10),
        failed=(Unknown(what="across islands", why="it hung: no answer within 15 s"),),
    )


@pytest.fixture
def machine() -> Machine:
    return load_machine(str(FIXTURE))


@pytest.fixture
def here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let the two H200 of a saved probe be this machine."""
    monkeypatch.setattr("advisor.probe.live.machine.probe_live", lambda: machine)
    return machine


@pytest.fixture
def saved(machine: Machine, tmp_path: Path) -> Path:
    """Save the probe of a machine of which links were measured."""
    document = json.loads(FIXTURE.read_text())
    kept = Measurements(identity=identity_of(machine, "there"), links=slow_links())
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(document | {"measured": msgspec.to_builtins(kept)}))
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main([*words, "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_a_probe_uses_what_is_kept_and_says_since_when(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    before = answer(capsys, "probe")
    assert {one["source"] for one in before["fabric"]["collectives"].values()} == {"model"}
    keep_links(here, slow_links())
    after = answer(capsys, "probe")
    assert after["fabric"]["collectives"]["all_reduce"]["source"] == "measured"
    assert after["fabric"]["collectives"]["broadcast"]["source"] == "model"
    assert after["measured"]["links"]["date"] == DAY
    cli.main(["probe"])
    text = capsys.readouterr().out
    assert "Links, measured 2026-11-30 in 3.2 s" in text
    assert "Copies of all GPUs at once: 50 GB/s from host memory and 40 GB/s to it, each GPU" in text
    assert "1 measurement failed: across islands: it hung" in text


def test_a_probe_says_what_has_changed_since_it_was_measured(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_links(here, slow_links())
    other = replace(here, environment=here.environment | {"NCCL_P2P_DISABLE": "1"})
    monkeypatch.setattr("advisor.probe.live.machine.probe_live", lambda: other)
    cli.main(["probe"])
    text = " ".join(capsys.readouterr().out.split())
    assert "measurements of 2026-11-30 are not used, this machine has changed: NCCL_P2P_DISABLE none -> 1" in text


def test_recommend_plans_with_what_is_kept_and_with_what_a_file_holds(
    here: Machine, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modelled = answer(capsys, "recommend", *JOB, "--machine", str(FIXTURE))
    by_file = answer(capsys, "recommend", *JOB, "--machine", str(saved))
    keep_links(here, slow_links())
    by_store = answer(capsys, "recommend", *JOB)
    assert by_file["predicted"] == by_store["predicted"]
    assert by_file["predicted"]["step_seconds"] > 2 * modelled["predicted"]["step_seconds"]
    for found in (by_file, by_store):
        assert "measured 2026-11-30" in [one["value"] for one in found["assumptions"]]
    assert "collectives" not in [one["what"] for one in modelled["assumptions"]]


def test_recommend_says_that_earlier_runs_moved_the_step(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    modelled = answer(capsys, "recommend", *JOB)
    name = here.gpus[0].name or ""
    keep_run(here, RunRatio(date=DAY, script="train.py", strategy="ddp", device=name, ratio=1.5))
    found = answer(capsys, "recommend", *JOB)
    assert found["predicted"]["step_seconds"] == pytest.approx(1.5 * modelled["predicted"]["step_seconds"])
    assert found["predicted"]["source"] == "measured"
    assert found["plan"] == modelled["plan"]
    assert ("step times", "x 1.50") in [(one["what"], one["value"]) for one in found["assumptions"]]


def test_measuring_shows_and_keeps_what_was_found(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("advisor.executor.links.measure_here", lambda *_: slow_links())
    found = answer(capsys, "probe", "--measure")
    assert found["fabric"]["collectives"]["all_gather"]["source"] == "measured"
    kept = recall(here).measurements
    assert kept is not None
    assert kept.links == slow_links()


def test_a_cache_that_cannot_be_written_is_one_line_of_the_answer(
    here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("advisor.executor.links.measure_here", lambda *_: slow_links())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))
    assert cli.main(["probe", "--measure"]) in (0, 1)
    text = " ".join(capsys.readouterr().out.split())
    assert "what was measured is not kept: can't write" in text
    assert "Links, measured 2026-11-30" in text


@pytest.mark.parametrize(
    ("words", "change", "what", "todo"),
    [
        (["--measure"], {"gpus": (), "links": ()}, "no GPU", "advisor probe --measure --gpus 2"),
        (["--measure"], {"software": None}, "torch", "pip install torch"),
        (["--measure", "--gpus", "3"], {}, "has 2", "--gpus 2"),
        (["--gpus", "2"], {}, "--gpus", "add --measure"),
        (["--measure", "--machine", "8x h100"], {}, "--machine", "leave one"),
    ],
    ids=["no GPU", "no torch", "too many", "without --measure", "another machine"],
)
def test_what_can_not_be_measured_is_two_lines(
    request: pytest.FixtureRequest, words: list[str], change: dict[str, Any], what: str, todo: str
) -> None:
    here, monkeypatch, capsys = map(request.getfixturevalue, ("here", "monkeypatch", "capsys"))
    if "software" in change:
        change = {"software": replace(here.software, torch=None)}
    monkeypatch.setattr("advisor.probe.live.machine.probe_live", lambda: replace(here, **change))
    assert cli.main(["probe", *words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert what in first
    assert todo in second
