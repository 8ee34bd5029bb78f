"""Scripts on Lightning that leave devices and strategy open: losses and checkpoints are those of DDP alone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "fixtures" / "scripts"
FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}
SECONDS = 300  # far more than anything here takes


class Trained:
    """What `libraries/on_lightning.py` printed and wrote."""

    def __init__(self, out: str, folder: Path) -> None:
        lines = [line.rsplit(" ", 1) for line in out.splitlines()]
        self.losses = [(what, float(loss)) for what, loss in lines]
        self.files = {str(file.relative_to(folder)): stored(file) for file in sorted(folder.rglob("*.ckpt"))}


def stored(file: Path) -> Any:
    # Made here; Lightning stores more than weights. What callbacks store names the folder.
    return {
        name: value
        for name, value in torch.load(file, weights_only=False).items()
        if name not in ("callbacks", "loops")
    }


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train with torchrun alone; the script then says devices and strategy itself."""
    folder = tmp_path_factory.mktemp("native")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launch, "libraries/on_lightning.py", str(folder), "2"]
    result = subprocess.run(command, cwd=SCRIPTS, capture_output=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return Trained(result.stdout.decode(), folder)


def assert_same(ours: Any, theirs: Any) -> None:
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
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    else:
        assert (type(ours), ours) == (type(theirs), theirs)


@pytest.mark.parametrize(
    ("ranks", "fields", "kinds"),
    [
        pytest.param(2, {"bucket_cap_mb": 1.0}, ("automatic", "fabric"), id="ddp"),
        pytest.param(2, FSDP | {"activation_checkpointing": "full"}, (), id="fsdp recomputes, all kinds"),
        # Four ranks are compared with two where all see the same batches.
        pytest.param(4, FSDP | {"strategy": "hsdp", "reshard_after_forward": False}, ("inner",), id="hsdp 2x2"),
    ],
)
def test_losses_and_checkpoints_are_those_of_ddp(
    scripts: Any, ranks_of: Any, native: Trained, *, ranks: int, fields: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    folder = scripts.folder.with_name("out")
    folder.mkdir()
    script = "libraries/on_lightning.py"
    result = scripts.forked(ranks_of, script, str(folder), "0", *kinds, plan=scripts.plan(ranks, **fields))
    assert (result.err, result.exit_code) == ("", 0)
    ours = Trained(result.out, folder)

    def chosen(what: str) -> bool:
        return not kinds or what.startswith(kinds)

    losses = [(what, pytest.approx(loss, abs=1e-5)) for what, loss in native.losses if chosen(what)]
    assert ours.losses == losses
    assert_same(ours.files, {name: value for name, value in native.files.items() if chosen(name)})
    assert_report(result, ranks, fields)


def assert_report(run: Any, ranks: int, fields: dict[str, Any]) -> None:
    given = {change.argument: change.plan for change in run.changes if change.used == "plan"}
    assert {name: given[name] for name in given if name.startswith("Trainer")} == {
        "Trainer(strategy)": "ddp",
        "Trainer(devices)": ranks,
        "Trainer(accelerator)": "cpu",
    } | ({"Trainer(inference_mode)": False} if "shard_size" in fields else {})
    became = {one.what: (one.became, one.ranks) for one in run.became}
    everywhere = tuple(range(ranks))
    assert became["processes"] == (ranks, everywhere)
    assert became["strategy"] == ("DDPStrategy", everywhere)
    assert became["precision"] == ("fp32", everywhere)
    sharded = ", sharded" if "shard_size" in fields else ""
    assert became["model"] == ("DistributedDataParallel" + sharded, everywhere)
    if sharded:
        assert became["mesh"] == ([2, 2] if ranks == 4 else [2], everywhere)
    if "activation_checkpointing" in fields:
        assert became["recomputation"] == (True, everywhere)
