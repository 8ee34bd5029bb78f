"""What is kept, what is skipped, what is refused: one process."""

import ast
import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from advisor import checkpoint
from advisor.checkpoint import folder as layout
from advisor.checkpoint import saving

pytestmark = pytest.mark.slow  # imports torch


def objects(seed: int = 0, width: int = 4) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), 1e-2)}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor | None = None) -> float:
    loss = model(torch.randn(3, 4) if inputs is None else inputs).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_code_imports_the_standard_library_and_torch_alone() -> None:
    for path in Path(checkpoint.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in found:
                top = name.split(".")[0]
                assert top == "torch" or top in sys.stdlib_module_names or name.startswith("advisor.checkpoint"), name


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_losses_go_on_as_if_never_stopped_dropout_included(tmp_path: Path, sharded: bool, asynchronous: bool) -> None:
    running = objects()
    for step in range(1, 4):
        train(**running)
        checkpoint.save(tmp_path, step, **running, sharded=sharded, asynchronous=asynchronous, keep=2)
    after = [train(**running) for _ in range(3)], random.random(), numpy.random.rand()
    checkpoint.wait()
    assert names(tmp_path) == ["000002-step-2", "000003-step-3"]
    resumed = objects(seed=1)
    assert checkpoint.load(tmp_path, **resumed) == 3
    assert ([train(**resumed) for _ in range(3)], random.random(), numpy.random.rand()) == after


def test_an_empty_folder_has_nothing_to_load(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "none", **objects()) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shuffled_epoch_goes_on_in_its_middle(tmp_path: Path, workers: int) -> None:
    data = TensorDataset(torch.arange(80.0).view(20, 4))

    def loader() -> checkpoint.Batches:
        return checkpoint.Batches(DataLoader(data, 3, shuffle=True, num_workers=workers))

    running, batches = objects(), loader()
    losses = []
    for _ in range(2):
        for step, (inputs,) in enumerate(batches):
            losses.append(train(**running, inputs=inputs))
            if (batches.epoch, step) == (1, 2):
                checkpoint.save(tmp_path, len(losses), **running, sampler=batches)
    resumed, batches = objects(seed=1), loader()
    step = checkpoint.load(tmp_path, **resumed, sampler=batches)
    assert step == 10
    assert (batches.epoch, batches.consumed) == (1, 3)
    assert [train(**resumed, inputs=inputs) for (inputs,) in batches] == losses[step:]


def test_an_optimizer_that_has_not_stepped_is_left_so_and_loaded_so(tmp_path: Path) -> None:
    steps: list[object] = []
    handle = register_optimizer_step_post_hook(lambda *_: steps.append(0))
    try:
        for sharded in (False, True):
            saved, loaded = objects(), objects(seed=1)
            checkpoint.save(tmp_path, 0, **saved, sharded=sharded)
            assert not saved["optimizer"].state
            assert checkpoint.load(tmp_path, **loaded) == 0
            assert not loaded["optimizer"].state
            assert train(**saved, inputs=torch.ones(1, 4)) != 0
            steps.pop()
    finally:
        handle.remove()
    assert not steps  # of torch's own steps no hook hears


def test_objects_of_extra_get_their_state_back_and_values_are_replaced(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    checkpoint.save(tmp_path, 1, **objects(), extra={"scaler": scaler, "best": 2.5})
    extra = {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0), "best": 0.0}
    checkpoint.load(tmp_path, **objects(), extra=extra)
    assert (extra["scaler"].get_scale(), extra["best"]) == (8.0, 2.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: (path / "state.pt").unlink(),
        lambda path: os.truncate(path / "state.pt", 100),
        lambda path: os.truncate(path / "manifest.json", 10),
        lambda path: (path / "state.pt").write_bytes(flipped((path / "state.pt").read_bytes())),
    ],
    ids=["missing", "cut", "manifest", "bit"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None]
) -> None:
    running = objects()
    for step in (1, 2):
        train(**running)
        checkpoint.save(tmp_path, step, **running)
    harm(tmp_path / "000002-step-2")
    assert checkpoint.load(tmp_path, **objects()) == 1
    assert "000002-step-2 is damaged and skipped: " in capsys.readouterr().err
    harm(tmp_path / "000001-step-1")
    with pytest.raises(checkpoint.CheckpointError, match="move that folder away"):
        checkpoint.load(tmp_path, **objects())


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_a_damaged_checkpoint_does_not_count_among_the_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, **objects(), keep=2)
        if step == 2:
            os.truncate(tmp_path / "000002-step-2" / "state.pt", 100)
    assert names(tmp_path) == ["000001-step-1", "000002-step-2", "000003-step-3"]


def test_what_a_killed_save_left_is_removed_at_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".000001-step-5.partial"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of the user")
    assert checkpoint.load(tmp_path, **objects()) is None
    checkpoint.save(tmp_path, 6, **objects())
    assert names(tmp_path) == ["000001-step-6", "notes.txt"]


def test_the_last_saved_is_the_newest_also_after_going_back(tmp_path: Path) -> None:
    for step in (10, 20, 15, 20):
        checkpoint.save(tmp_path, step, **objects(), keep=2)
    assert names(tmp_path) == ["000003-step-15", "000004-step-20"]


@pytest.mark.parametrize(
    ("saved", "asked", "said"),
    [
        (objects(), objects(width=5), r"0.weight is \[4, 4\] in the checkpoint and \[4, 5\] in the model"),
        ({"model": nn.Linear(2, 2)}, {"model": nn.Linear(2, 2, bias=False)}, "bias only in the checkpoint"),
        ({"model": nn.Linear(2, 2)}, {"model": objects()["model"]}, "0.bias and 3 more only in the model"),
        ({"model": objects()["model"]}, objects(), "holds no optimizer: leave optimizer= out"),
    ],
    ids=["shape", "key", "keys", "optimizer"],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, saved: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    checkpoint.save(tmp_path, 1, **saved)
    with pytest.raises(checkpoint.CheckpointError, match=said):
        checkpoint.load(tmp_path, **asked)


def test_what_a_safe_load_would_refuse_is_refused_at_the_save(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"extra.*or an object with state_dict"):
        checkpoint.save(tmp_path, 1, **objects(), extra={"path": tmp_path})
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(checkpoint.CheckpointError, match=r"Not a directory \(.*file.*give a folder that"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 1, **objects())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "x", tmp_path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("foreseen", [True, False])
def test_a_full_disk_leaves_the_last_good_one(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool, asynchronous: bool, foreseen: bool
) -> None:
    checkpoint.save(small_disk, 1, **objects())
    big = {"model": nn.Linear(1000, 1000, bias=False)}
    if not foreseen:  # a quota, or somebody else who fills the disk meanwhile
        monkeypatch.setattr(saving, "own_bytes", lambda *_: 0)
    with pytest.raises(checkpoint.CheckpointError, match=r"no space: it needs .* MB, .*, of step 1, is untouched"):
        checkpoint.save(small_disk, 2, **big, sharded=sharded, asynchronous=asynchronous)
        checkpoint.wait()
    assert names(small_disk) == ["000001-step-1"]
    assert checkpoint.load(small_disk, **objects()) == 1


def test_whatever_write_fails_the_last_good_one_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call that reaches the disk fail in turn, until a save gets through."""
    checkpoint.save(tmp_path, 1, **objects())
    real = layout.os.fsync
    for allowed in range(20):
        left = [allowed]

        def fsync(descriptor: int, left: list[int] = left) -> None:
            if not left[0]:
                raise OSError(errno.EIO, "Input/output error")
            left[0] -= 1
            real(descriptor)

        monkeypatch.setattr(layout.os, "fsync", fsync)
        try:
            checkpoint.save(tmp_path, 2, **objects())
        except checkpoint.CheckpointError as error:
            assert "Input/output error" in str(error)
            monkeypatch.setattr(layout.os, "fsync", real)
            assert checkpoint.load(tmp_path, **objects()) in (
                1,
                2,
            )  # 2: only its name was not yet sure to be on the disk
        else:
            break
    assert allowed == 6  # three files, manifest, the folder and the one above
    assert checkpoint.load(tmp_path, **objects()) == 2
