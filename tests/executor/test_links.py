"""Links are measured group by group; a group that hangs or fails is an answer with its reason."""

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from advisor.executor import links
from advisor.executor.folder import RunFolder
from advisor.executor.links import Round, measure_here, measure_links, rounds_of
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine

GPUS = ("GPU0", "GPU1", "GPU2", "GPU3")
FOUND = {op: [[65536, 1e-4], [1048576, 1e-3]] for op in ("all_reduce", "all_gather", "reduce_scatter")}


def pairs() -> Machine:
    """Return four GPUs, two and two bridged; the bridged ones do not follow each other."""
    gpus = tuple(Gpu(id=gpu, index=i, name="NVIDIA A100", uuid=f"GPU-{i}") for i, gpu in enumerate(GPUS))
    joined = [(a, b) for i, a in enumerate(GPUS) for b in GPUS[i + 1 :]]
    bridged = {("GPU0", "GPU2"), ("GPU1", "GPU3")}
    matrix = (
        Link(a=a, b=b, code="NV4", kind="nvlink")
        if (a, b) in bridged
        else Link(a=a, b=b, code="SYS", kind="inter-socket")
        for a, b in joined
    )
    return with_link_bandwidths(Machine(gpus=gpus, links=tuple(matrix)))


class FakeForks:
    """Plays the ranks: rounds end with what was found, those that `fail` names by an error or without a word."""

    def __init__(self, folder: Path, fail: Mapping[str, str]) -> None:
        self.folder, self.fail = folder, fail
        self.environments: list[dict[str, str]] = []

    def next_folder(self, name: str) -> RunFolder:
        folder = RunFolder(self.folder / name)
        folder.create()
        return folder

    def run(
        self, argv: Sequence[str], ranks: int, folder: RunFolder, environment: dict[str, str], limit: float
    ) -> dict[str, Any]:
        self.environments.append(environment)
        given = json.loads(environment["ADVISOR_LINKS"])
        copies = {"to_gpu": 2e10, "from_gpu": 1e10}
        for one in given["rounds"]:
            for rank in range(ranks):
                found = copies if one["copies"] else FOUND if any(rank in group for group in one["groups"]) else {}
                lines = [{"began": one["name"]}, {"ended": one["name"], "found": found}]
                with (folder.ranks / f"{rank}.jsonl").open("a") as file:
                    for line in lines[: 1 if one["name"] in self.fail else 2]:
                        file.write(json.dumps(line) + "\n")
            if one["name"] in self.fail:
                (folder.logs / "0.err").write_text(self.fail[one["name"]])
                status = 1 if self.fail[one["name"]] else -signal.SIGALRM
                return {"statuses": [status] * ranks, "late": False, "seconds": 1.0}
        return {"statuses": [0] * ranks, "late": False, "seconds": 1.0}


def test_all_gpus_each_island_across_them_and_copies_are_measured() -> None:
    assert list(rounds_of(pairs(), GPUS)) == [
        Round("all 4", (GPUS,)),
        Round("island GPU0,GPU2", (("GPU0", "GPU2"),)),
        Round("island GPU1,GPU3", (("GPU1", "GPU3"),)),
        Round("across islands", (("GPU0", "GPU1"), ("GPU2", "GPU3"))),
        Round(links.COPIES, copies=True),
    ]


def test_gpus_of_one_island_are_one_group_and_one_gpu_has_copies_alone() -> None:
    assert [one.name for one in rounds_of(pairs(), ("GPU0", "GPU2"))] == ["all 2", links.COPIES]
    assert [one.name for one in rounds_of(pairs(), ("GPU3",))] == [links.COPIES]


def test_each_group_is_kept_under_the_names_that_plans_use(tmp_path: Path) -> None:
    forks = FakeForks(tmp_path, {})
    found = measure_links(pairs(), GPUS, forks, 60.0)  # type: ignore[arg-type]
    assert [(group.gpus, group.concurrent) for group in found.groups] == [
        (GPUS, 1),
        (("GPU0", "GPU2"), 1),
        (("GPU1", "GPU3"), 1),
        (("GPU0", "GPU1"), 2),
    ]
    assert found.host_copies is not None
    assert (found.host_copies.to_gpu, found.failed) == (2e10, ())
    assert forks.environments[0]["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1,GPU-2,GPU-3"


def test_a_group_that_fails_or_hangs_is_an_answer_and_the_others_are_measured(tmp_path: Path) -> None:
    cuda = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    fail = {
        "all 4": "Traceback ...\nRuntimeError: NCCL error: unhandled system error\n",
        "across islands": "",
        links.COPIES: f"Traceback ...\n{cuda}\nSearch for `cudaErrorDevicesUnavailable' in https://docs.nvidia.com\n",
    }
    found = measure_links(pairs(), GPUS, FakeForks(tmp_path, fail), 60.0)  # type: ignore[arg-type]
    assert [group.gpus for group in found.groups] == [("GPU0", "GPU2"), ("GPU1", "GPU3")]
    assert found.host_copies is None
    assert {one.what: one.why for one in found.failed} == {
        links.COPIES: cuda,
        "all 4": "RuntimeError: NCCL error: unhandled system error",
        "across islands": "it hung: no answer within 15 s",
    }


def two_processes() -> Machine:
    return cpu_stand_ins(Machine(host=Host(cpus=2, memory_available=10**9)), 2)


@pytest.mark.slow
def test_two_processes_with_gloo_are_measured_and_leave_nothing() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    found = measure_here(two_processes(), ("CPU0", "CPU1"), 60.0)
    assert found.failed == ()
    (group,) = found.groups
    for one in group.collectives.values():
        assert one.source == "measured"
        assert 1e6 < one.bus_bandwidth < 1e11
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.slow
def test_real_ranks_that_hang_are_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROUND_LIMIT", 1e-3)  # nothing is so fast
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    found = measure_here(two_processes(), ("CPU0", "CPU1"), 60.0)
    assert found.groups == ()
    (failed,) = found.failed
    assert failed.why.startswith("it hung")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
