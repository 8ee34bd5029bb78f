"""What stops a run before it starts: mistakes of the script that its plan turns into a hang or a wrong result."""

from pathlib import Path

import pytest

from advisor.executor.before import judged, stopping
from advisor.rules.catalog import RULES
from advisor.rules.machine import Machine
from advisor.rules.plan import Finding, Launcher, Plan, Strategy

HEAD = """import torch, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
rank = dist.get_rank()
net = torch.nn.Linear(2, 2)
model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
"""
LAST = len(HEAD.splitlines())
BARRIER = "if rank == 0:\n    dist.barrier()\n"


def plan(strategy: Strategy = "ddp", ranks: int = 2) -> Plan:
    gpus = tuple(f"GPU{number}" for number in range(ranks))
    return Plan(gpus=gpus, strategy=strategy, precision="fp32", launcher=Launcher(nproc_per_node=ranks))


def stops(tmp_path: Path, source: str, given: Plan) -> list[tuple[str, int]]:
    """Return name and line, below the head, of what stops a run."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + source)
    rules = [rule for rule in RULES if rule.code.startswith("SCR")]
    found = stopping(judged(script, given, Machine(), None, rules), given)
    assert all(finding.file == str(script) for finding in found)
    return [(finding.name, (finding.line or 0) - LAST) for finding in found]


SHARDED = [
    pytest.param("if rank == 0:\n    torch.save(model.state_dict(), 'x')\n", 2, id="the wrapper"),
    pytest.param("if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), 'x')\n", 2, id="inside"),
    pytest.param("if not rank:\n    net.state_dict()\n", 2, id="the model by its first name"),
    pytest.param("raw = model.module if ddp else model\nif rank == 0:\n    raw.state_dict()\n", 3, id="nanoGPT"),
    pytest.param("if int(os.environ['RANK']) == 0:\n    optimizer.state_dict()\n", 2, id="environment"),
    pytest.param("def save(m):\n    m.state_dict()\nif rank == 0:\n    save(model)\n", 2, id="in a function"),
    pytest.param(
        "def save():\n    if rank != 0:\n        return\n    model.state_dict()\nsave()\n", 4, id="others leave"
    ),
    pytest.param("if rank != 0:\n    pass\nelse:\n    model.state_dict()\n", 4, id="else"),
    pytest.param("if rank == 0:\n    model.eval()\n    model(x)\n", 3, id="a forward pass"),
    pytest.param("state = model.state_dict()\nif rank == 0:\n    torch.save(state, 'x')\n", None, id="taken by all"),
    pytest.param("if rank == 0:\n    scheduler.state_dict()\n", None, id="scheduler"),
    pytest.param("if rank == 0:\n    average.state_dict()\n", None, id="a copy"),
    pytest.param("if rank == 0 or True:\n    model.state_dict()\n", None, id="not for rank 0 alone"),
    pytest.param("if rank_zero_logs != 3:\n    model.state_dict()\n", None, id="another test"),
]


@pytest.mark.parametrize(("source", "line"), SHARDED)
def test_what_all_ranks_must_do_to_a_sharded_model_stops_a_plan_that_shards(
    tmp_path: Path, source: str, line: int | None
) -> None:
    expected = [] if line is None else [("collective-on-some-ranks", line)]
    assert stops(tmp_path, source, plan("fsdp")) == expected
    assert stops(tmp_path, source, plan("ddp")) == []


def test_a_hang_stops_any_plan_of_several_ranks_and_none_of_one(tmp_path: Path) -> None:
    assert stops(tmp_path, BARRIER, plan()) == [("collective-on-some-ranks", 2)]
    assert stops(tmp_path, BARRIER, plan("fsdp")) == [("collective-on-some-ranks", 2)]
    assert stops(tmp_path, BARRIER, plan("single", 1)) == []


def test_a_comment_lets_it_run(tmp_path: Path) -> None:
    assert stops(tmp_path, BARRIER.replace("()\n", "()  # advisor: ignore[SCR141]\n"), plan()) == []


def test_a_script_that_python_can_not_read_is_left_to_python(tmp_path: Path) -> None:
    assert stops(tmp_path, "def f(:\n", plan()) == []


def test_errors_of_machine_and_plan_stop_a_run_of_one_process_as_well() -> None:
    bad = Finding(code="NET199", name="cable-cut", severity="error", message="m", remedy="r")
    slow = Finding(code="SCR199", name="slow", severity="warning", message="m", remedy="r")
    assert stopping([bad, slow], plan("single", 1)) == [bad]
