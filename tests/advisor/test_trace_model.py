"""`--model`: any model of the user's, traced in a process of its own."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from advisor.cli import main
from advisor.commands.model import reply_of, trace_model
from advisor.rules.errors import AdvisorError
from advisor.trace.messages import Request

pytestmark = pytest.mark.slow

NET = """
import torch
from torch import nn
import advisor, rules

print("a word on stdout")
assert advisor.OWN and rules.OWN, "the user's own packages"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(3, 10)
        nn.init.trunc_normal_(self.head.weight)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Picky(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def compiled():
    return torch.compile(nn.DataParallel(Net()))


def on_gpu():
    return Net().cuda()


def missing():
    return open("weights.bin")


def number():
    return 7


def dense():
    return nn.Linear(8, 2)


def picky():
    return Picky(8, 2), lambda samples: torch.randn(samples, 8)


def narrow():
    return nn.Linear(8, 2), lambda samples: torch.randn(samples, 9)


def by_name():
    class Two(nn.Linear):
        def forward(self, left, right):
            return super().forward(left + right)

    return Two(8, 2), lambda samples: {"right": torch.ones(samples, 8), "left": torch.ones(8)}


def with_loss():
    return Net(), lambda samples: (torch.randn(samples, 3, 8, 8), 1), lambda model, batch: model(batch[0]).sum()


def killed():
    import os, signal
    print("the last word", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


ready = Net()
"""


STUCK = """
import pathlib, subprocess, time
pathlib.Path("child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a user's folder: a model, and packages that are called as ours are."""
    made = tmp_path_factory.mktemp("user")
    (made / "net.py").write_text(NET)
    (made / "leaves.py").write_text("import sys\nsys.exit('usage: leaves DATA')\n")
    for package in ("advisor", "rules"):
        (made / package).mkdir()
        (made / package / "__init__.py").write_text("OWN = True\n")
    return made


def test_recommend_traces_the_model_of_a_folder_with_packages_named_as_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    code = main(["recommend", "--model", "net:Net", "--input", "3x64x64", "--machine", "2x h100 nvswitch", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["verdict"], answer["job"]["params"]) == (0, "fits", 3 * 84 + 40)
    assert {path.name for path in set(folder.iterdir()) - before} <= {"__pycache__"}


def test_what_wraps_a_model_is_taken_off_and_told_and_one_trace_serves_both_autocasts(folder: Path) -> None:
    request = Request(model="net:compiled", precisions=("bf16-autocast", "fp16-autocast"), shape=(3, 8, 8))
    reply = reply_of(request, folder=folder)
    assert [assumption.value for assumption in reply.assumptions] == ["without torch.compile", "without DataParallel"]
    bf16, fp16 = reply.profiles
    assert (bf16.precision, fp16.precision) == request.precisions
    assert bf16.units == fp16.units and bf16.params == 3 * 84 + 40


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("net", "'net' names no factory"),
        ("nett:Net", "no module nett was found for nett:Net"),
        ("net:Nett", "net has no Nett"),
        ("net:NET", "net has no NET"),
        ("leaves:Net", "leaves can't be imported: leaves.py:2: SystemExit: usage: leaves DATA"),
        ("net:missing", "net:missing could not be built: net.py:37: FileNotFoundError: "),
        ("net:number", "net:number gave int, not a torch.nn.Module"),
        ("net:dense", "what net:dense takes can't be guessed"),
        ("net:picky", "what net:picky runs depends on values (net.py:25), which a trace has not"),
        ("net:narrow", "net:narrow could not be run: "),
        ("config.json", "can't read config.json: No such file or directory"),
    ],
)
def test_a_model_that_can_not_be_traced_gets_a_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, says: str
) -> None:
    failure = answered(folder, monkeypatch, model).failure
    assert failure is not None and failure.message.startswith(says) and failure.hint


@pytest.mark.parametrize("model", ["net:on_gpu", "net:ready", "net:by_name", "net:with_loss"])
def test_a_factory_may_use_a_gpu_give_a_model_that_was_there_a_batch_or_a_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    reply = answered(folder, monkeypatch, model)
    assert reply.failure is None and reply.profiles[0].trainable > 0


def answered(folder: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> "object":
    """Answer a request as the tracing process does, in this one."""
    pytest.importorskip("torch")

    from advisor.trace.answer import answer

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"advisor", "net", "rules"}]:
        monkeypatch.delitem(sys.modules, name)
    return answer(Request(model=model, precisions=("fp32",)))


def test_a_process_that_dies_is_told_with_its_last_word(folder: Path) -> None:
    with pytest.raises(AdvisorError, match="was ended by signal 9: the last word"):
        trace_model("net:killed", precisions=("fp32",), folder=folder)


def test_a_model_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)  # long before torch is there
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AdvisorError, match="net:Net was not traced within 3 s"):
        reply_of(Request(model="net:Net", precisions=("fp32",)), folder=tmp_path, limit=3)
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "the child lives on"
        time.sleep(0.05)
