"""States that rank 0 alone takes, seen in the source."""

from pathlib import Path

import pytest

from advisor.executor.refuse import refuse
from advisor.executor.script import Place, read_script
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Launcher, Plan

HEAD = """import torch, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
rank = dist.get_rank()
model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
"""  # 8 lines
PLAN = Plan(gpus=("GPU0", "GPU1"), strategy="fsdp", shard_size=2, precision="fp32", launcher=Launcher(nproc_per_node=2))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        pytest.param("if rank == 0:\n    torch.save(model.state_dict(), 'x')\n", 10, id="the wrapper"),
        pytest.param("if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), 'x')\n", 10, id="inside"),
        pytest.param("if not rank:\n    net.state_dict()\n", 10, id="the model by its first name"),
        pytest.param(
            "raw = model.module if ddp else model\nif master_process:\n    raw.state_dict()\n", 11, id="nanoGPT"
        ),
        pytest.param("if int(os.environ['RANK']) == 0:\n    optimizer.state_dict()\n", 10, id="environment"),
        pytest.param("def save(m):\n    m.state_dict()\nif rank == 0:\n    save(model)\n", 10, id="in a function"),
        pytest.param("def save():\n    if rank != 0:\n        return\n    model.state_dict()\n", 12, id="others leave"),
        pytest.param("if rank != 0:\n    pass\nelse:\n    model.state_dict()\n", 12, id="else"),
        pytest.param(
            "state = model.state_dict()\nif rank == 0:\n    torch.save(state, 'x')\n", None, id="taken by all"
        ),
        pytest.param("if rank == 0:\n    scheduler.state_dict()\n", None, id="scheduler"),
        pytest.param("if rank == 0:\n    average.state_dict()\n", None, id="a copy"),
        pytest.param("if rank == 0 or True:\n    model.state_dict()\n", None, id="not for rank 0 alone"),
        pytest.param("if rank_zero_logs != 3:\n    model.state_dict()\n", None, id="another test"),
    ],
)
def test_state_of_rank_0_alone(tmp_path: Path, source: str, line: int | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + source)
    expected = None if line is None else Place(file=str(script), line=line)
    assert read_script(script).lone_state == expected


def test_it_is_refused_with_the_lines_to_change_where_the_plan_shards(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + "if rank == 0:\n    torch.save(model.state_dict(), 'x')\n")
    with pytest.raises(AdvisorError, match=r"rank 0 alone calls state_dict\(\) \(.*train.py, line 10\)") as refused:
        refuse(PLAN, read_script(script))
    assert "    state = model.state_dict()\n    if rank == 0:" in refused.value.hint


def test_what_a_plan_for_sharding_can_not_do_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + "with model.join():\n    pass\n")
    with pytest.raises(AdvisorError, match=r"join\(\) \(.*line 9\), which FSDP can't"):
        refuse(PLAN, read_script(script))
    script.write_text(
        "import os, torch\nrank = os.environ['LOCAL_RANK']\ntorch.ones(1, requires_grad=True).backward()\n"
    )
    with pytest.raises(AdvisorError, match='no DistributedDataParallel call that a plan with strategy="fsdp"'):
        refuse(PLAN, read_script(script))
