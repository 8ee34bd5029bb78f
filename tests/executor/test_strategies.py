"""Each strategy on each kind of script: losses and checkpoints are those of torchrun and DDP alone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "fixtures" / "scripts"
FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}
ACCUMULATING = ("accumulates", "accumulates_by_flag", "accumulates_in_sync")
SECONDS = 300  # far more than anything here takes


class Trained:
    """What `kinds/train.py` printed and wrote."""

    def __init__(self, out: str, folder: Path) -> None:
        lines = [line.rsplit(" ", 1) for line in out.splitlines()]
        self.losses = [(what, pytest.approx(float(loss), abs=1e-5)) for what, loss in lines]
        self.files = {file.name: torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train with torchrun alone on two ranks; four train on the same two batches."""
    folder = tmp_path_factory.mktemp("native")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launch, "kinds/train.py", str(folder)]
    result = subprocess.run(command, cwd=SCRIPTS, capture_output=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return Trained(result.stdout.decode(), folder)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("ranks", "fields"),
    [
        pytest.param(2, {"bucket_cap_mb": 1.0, "static_graph": True}, id="ddp"),
        pytest.param(2, {"accumulation": 3, "activation_checkpointing": "full"}, id="ddp accumulated, recomputes"),
        pytest.param(2, FSDP | {"sync_each_micro_batch": True}, id="fsdp"),
        pytest.param(
            2,
            FSDP | {"reshard_after_forward": False, "activation_checkpointing": "selective"},
            id="fsdp keeps weights, reduces late, recomputes every second block",
        ),
        pytest.param(4, {"strategy": "hsdp", "shard_size": 2}, id="hsdp 2x2"),
    ],
)
def test_losses_and_checkpoints_are_those_of_ddp(
    scripts: Any, ranks_of: Any, native: Trained, tmp_path: Path, *, ranks: int, fields: dict[str, Any]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    kinds = ACCUMULATING if fields.get("accumulation", 1) > 1 else ()  # the others are refused
    result = scripts.forked(ranks_of, "kinds/train.py", str(folder), *kinds, plan=scripts.plan(ranks, **fields))
    assert result.exit_code == 0, result.err
    ours = Trained(result.out, folder)
    losses = [(what, loss) for what, loss in native.losses if not kinds or what.split()[0] in kinds]
    assert [what for what, _ in ours.losses] == [what for what, _ in losses]
    assert [loss.expected for _, loss in ours.losses] == [loss for _, loss in losses]
    assert_same(ours.files, {name: native.files[name] for name in native.files if not kinds or name[:-3] in kinds})


def test_the_report_says_how_the_model_was_sharded(scripts: Any, ranks_of: Any, tmp_path: Path) -> None:
    plan = scripts.plan(2, strategy="fsdp", shard_size=2, activation_checkpointing="selective")
    result = scripts.forked(ranks_of, "kinds/train.py", str(tmp_path), "plain", plan=plan)
    assert (result.err, result.exit_code) == ("", 0)
    used = {change.argument: change.plan for change in result.changes}
    assert used == {
        "fully_shard": "3 blocks and the rest of Model",
        "reshard_after_forward": True,
        "activation_checkpointing": "2 of 3 blocks",
    }


def test_a_change_of_rhythm_ends_the_skipping_of_synchronisation(scripts: Any, ranks_of: Any, tmp_path: Path) -> None:
    plan = scripts.plan(2, accumulation=3)
    kinds = ("accumulates_in_sync", "plain")  # the last is refused
    result = scripts.forked(ranks_of, "kinds/train.py", str(tmp_path), *kinds, plan=plan)
    skips, ends, *_ = result.err.splitlines()
    assert skips == "advisor: 3 backward passes per optimizer step: from now on the last alone synchronises gradients"
    assert ends == (
        "advisor: 2 backward passes in this optimizer step, 3 before: from now on each synchronises gradients again"
    )
    assert "the script made one backward pass of 4 samples; nothing was trained yet" in result.err
    assert (result.exit_code, "plain" in result.out, "in_process" in result.err) == (1, False, False)


def test_a_state_that_rank_0_takes_alone_is_named_within_seconds(scripts: Any) -> None:
    result = scripts.applied("kinds/lone_state.py", plan=scripts.plan(2, strategy="fsdp", shard_size=2))
    assert result.exit_code == 1
    last = result.err.strip().splitlines()[-1]
    assert "state_dict() is a collective when the model is sharded, and rank 1 did not come within 20 s" in last
    assert "call it on every rank and let rank 0 alone write the file" in last
    assert "in_process" not in result.err


def test_a_script_that_shards_by_itself_gets_what_it_leaves_open(scripts: Any, ranks_of: Any) -> None:
    plan = scripts.plan(4, strategy="hsdp", shard_size=2, reshard_after_forward=False)
    result = scripts.forked(ranks_of, "kinds/shards.py", plan=plan)
    assert (result.err, result.exit_code) == ("", 0)
    assert result.out.splitlines()[3:] == ["gathered after forward: True", "mesh: (2, 2)"]


HALF = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.ones(2) * (1 + dist.get_rank()) / 7).sum().backward()
if dist.get_rank() == 0:
    print(model.module.weight.grad[0].tolist())
dist.destroy_process_group()
"""


def test_half_precision_gradients_are_sent_where_the_plan_says_so(scripts: Any, ranks_of: Any, tmp_path: Path) -> None:
    script = tmp_path / "half.py"
    script.write_text(HALF)
    result = scripts.forked(ranks_of, str(script), plan=scripts.plan(2, gradient_dtype="fp16"))
    half = [torch.tensor((1 + rank) / 7).div(2).half() for rank in range(2)]
    assert (result.err, result.exit_code) == ("", 0)
    assert result.out == f"{[float(sum(half))] * 2}\n"
    assert float(sum(half)) != pytest.approx(1.5 / 7, abs=1e-6)
