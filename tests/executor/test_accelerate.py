"""Scripts on accelerate and Transformers' Trainer: their losses and weights under each plan are those under DDP."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "fixtures" / "scripts"
SCRIPT = "libraries/on_accelerate.py"
FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}
HSDP: dict[str, Any] = {"strategy": "hsdp", "shard_size": 2}
SPLIT: dict[str, Any] = {"micro_batch": 2, "accumulation": 2}
RECOMPUTED: dict[str, Any] = {"activation_checkpointing": "full"}
HALF: dict[str, Any] = {"activation_checkpointing": "selective"}
SECONDS = 300  # far more than anything here takes


class Trained:
    """What a script printed, and the weights that it wrote."""

    def __init__(self, out: str, folder: Path) -> None:
        lines = [line.rsplit(" ", 1) for line in out.splitlines() if not line.startswith("{")]
        self.losses = {what: float(value) for what, value in lines}
        self.weights = {file.name: torch.load(file, weights_only=True) for file in folder.glob("*.pt")}
        self.weights |= {file.parent.name: load_file(file) for file in folder.glob("*/model.safetensors")}
        # accelerate's save_state() has another format under FSDP
        fsdp = folder.glob("*/pytorch_model_fsdp.bin")
        self.weights |= {file.parent.name: torch.load(file, weights_only=True) for file in fsdp}

    def assert_same(self, other: "Trained") -> None:
        """Compare with a run that may have trained more kinds."""
        assert self.losses
        losses = {what: loss for what, loss in other.losses.items() if what in self.losses}
        assert self.losses == pytest.approx(losses, abs=1e-5)
        assert self.weights
        assert self.weights.keys() <= other.weights.keys()
        for name in self.weights:
            state = other.weights[name]
            assert self.weights[name].keys() == state.keys()
            for key, weight in state.items():
                torch.testing.assert_close(self.weights[name][key], weight, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train with torchrun alone, where accelerate makes DDP of it."""
    folder = tmp_path_factory.mktemp("native")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["env", "ACCELERATE_USE_CPU=true", "OMP_NUM_THREADS=1", sys.executable, *launch, SCRIPT, str(folder)]
    result = subprocess.run(command, cwd=SCRIPTS, capture_output=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return Trained(result.stdout.decode(), folder)


@pytest.mark.parametrize(
    ("ranks", "fields", "kinds"),
    [
        pytest.param(2, SPLIT | RECOMPUTED, ("accumulates", "trainer"), id="ddp, batch split, recomputed"),
        pytest.param(2, FSDP | {"reshard_after_forward": False}, (), id="fsdp that keeps weights"),
        pytest.param(4, HSDP | HALF, ("plain",), id="hsdp 2x2, every second block recomputed"),
    ],
)
def test_losses_and_weights_are_those_under_ddp(
    scripts: Any,
    ranks_of: Any,
    native: Trained,
    tmp_path: Path,
    *,
    ranks: int,
    fields: dict[str, Any],
    kinds: tuple[str, ...],
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    run = scripts.forked(ranks_of, SCRIPT, str(folder), *kinds, plan=scripts.plan(ranks, **fields))
    assert run.exit_code == 0, run.err
    Trained(run.out, folder).assert_same(native)
    became = {one.what: (one.became, one.wanted) for one in run.became}
    assert all(is_now == planned for is_now, planned in became.values()), became
    assert became["processes"] == (ranks, ranks)
    assert became["type"][0] == ("FSDP" if "strategy" in fields else "MULTI_CPU")
    assert became.get("mesh", (None,))[0] == ({2: [2], 4: [2, 2]}[ranks] if "strategy" in fields else None)
    assert run.ranks[0].steps > 1
    if "accumulation" in fields:
        used = {change.argument: (change.script, change.plan) for change in run.changes}
        assert used["TrainingArguments(per_device_train_batch_size)"] == (4, 2)
        assert used["TrainingArguments(gradient_accumulation_steps)"] == (1, 2)
