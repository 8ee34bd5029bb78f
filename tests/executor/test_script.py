"""What kind of script it is, told from its source."""

from pathlib import Path

import pytest

from advisor.executor.refuse import refuse
from advisor.executor.script import Place, read_script
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Launcher, Plan

LOOP = "loss = torch.ones(1, requires_grad=True)\nloss.backward()\n"
GROUP = "import torch.distributed as dist\ndist.init_process_group()\n"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        pytest.param("import torch\n" + LOOP, "plain", id="a loop of its own"),
        pytest.param("print('no training here')\n", "unknown", id="no torch"),
        pytest.param("import torch\nfrom lib import fit\nfit(torch.nn.ReLU())\n", "unknown", id="a loop elsewhere"),
        pytest.param(GROUP + "import torch\ntorch.nn.parallel.DistributedDataParallel(m)\n", "ddp", id="full name"),
        pytest.param(GROUP + "from torch import nn\nnn.parallel.DistributedDataParallel(m)\n", "ddp", id="attribute"),
        pytest.param(GROUP + "from torch.nn.parallel import DistributedDataParallel as D\nD(m)\n", "ddp", id="alias"),
        pytest.param(
            GROUP + "import torch\nD = torch.nn.parallel.DistributedDataParallel\nD(m)\n", "ddp", id="assigned"
        ),
        pytest.param(
            GROUP + "from torch.nn.parallel import DistributedDataParallel\nclass Mine(DistributedDataParallel): ...\n",
            "ddp",
            id="derived",
        ),
        pytest.param(
            "class DistributedDataParallel: ...\nDistributedDataParallel()\n", "unknown", id="another of that name"
        ),
        pytest.param("from torch.nn.parallel import DistributedDataParallel\n", "unknown", id="imported, never used"),
        pytest.param(GROUP + "import torch\n" + LOOP, "unknown", id="all-reduce by hand"),
        pytest.param("import os, torch\nos.environ['LOCAL_RANK']\n" + LOOP, "unknown", id="knows its rank"),
        pytest.param(GROUP + "from torch.distributed.fsdp import fully_shard\nfully_shard(m)\n", "fsdp", id="fsdp2"),
        pytest.param("from accelerate import Accelerator\nAccelerator()\n" + LOOP, "accelerate", id="accelerate"),
        pytest.param("import lightning as L\nL.Trainer().fit(m)\n", "lightning", id="lightning"),
        pytest.param("import pytorch_lightning as pl\npl.Trainer().fit(m)\n", "lightning", id="pytorch_lightning"),
        pytest.param("from lightning.fabric import Fabric\nFabric()\n" + LOOP, "lightning", id="fabric"),
        pytest.param("from lightning.pytorch.cli import LightningCLI\nLightningCLI(M)\n", "lightning", id="its CLI"),
        pytest.param("from transformers import Trainer\nTrainer(m).train()\n", "trainer", id="trainer"),
        pytest.param("import trl\ntrl.GRPOTrainer(m).train()\n", "trainer", id="trl"),
        pytest.param("import deepspeed\ndeepspeed.initialize(model=m)\n", "deepspeed", id="deepspeed"),
        pytest.param(
            GROUP + "import torch.multiprocessing as mp\nimport torch\nmp.spawn(f)\n"
            "torch.nn.parallel.DistributedDataParallel(m)\n",
            "spawn",
            id="starts its own processes",
        ),
    ],
)
def test_kind(tmp_path: Path, source: str, kind: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert read_script(script).kind == kind


def test_lines_of_process_group_and_wrap(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n" + GROUP + "\nmodel = torch.nn.parallel.DistributedDataParallel(model)\n")
    facts = read_script(script)
    assert facts.process_group == Place(file=str(script), line=3)
    assert facts.wrap == Place(file=str(script), line=5)


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("from .start import start\n")
    (tmp_path / "lib" / "start.py").write_text(
        GROUP
        + "from torch.nn.parallel import DistributedDataParallel\ndef start(m): return DistributedDataParallel(m)\n"
    )
    script = tmp_path / "train.py"
    script.write_text("import torch\nfrom lib import start\nstart(m)\n" + LOOP)
    facts = read_script(script)
    assert facts.kind == "ddp"
    assert facts.wrap == Place(file=str(tmp_path / "lib" / "start.py"), line=4)


def test_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ndef f(:\n")
    assert read_script(script).syntax_error == "line 2: invalid syntax"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"\x7fELF\0\0", "holds binary data"), ("folder", "is a folder")],
)
def test_what_is_no_script_is_refused(tmp_path: Path, content: object, words: str) -> None:
    script = tmp_path / "train.py"
    if isinstance(content, bytes):
        script.write_bytes(content)
    elif content:
        script.mkdir()
    with pytest.raises(AdvisorError, match=words):
        read_script(script)


DDP = GROUP + "import os, torch\nm = torch.nn.parallel.DistributedDataParallel(torch.nn.ReLU())\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        pytest.param("m.to('cuda:0')\n", 5, id="cuda:0"),
        pytest.param("m.cuda()\n", 5, id="the current GPU"),
        pytest.param("x = 1\nm.cuda(0)\n", 6, id="by number"),
        pytest.param("device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n", None, id="not seen"),
        pytest.param("device = torch.device('cuda')\n", 5, id="device"),
        pytest.param("torch.cuda.set_device(0)\nm.to('cuda')\n", 5, id="all ranks set the first"),
        pytest.param("torch.cuda.set_device(dist.get_rank())\nm.cuda()\n", None, id="set by rank"),
        pytest.param("m.to(f'cuda:{dist.get_rank()}')\n", None, id="rank in the name"),
        pytest.param("m.cuda(dist.get_rank())\n", None, id="rank as number"),
        pytest.param("torch.load('x', map_location='cuda:0')\nos.environ['LOCAL_RANK']\n", None, id="knows local rank"),
        pytest.param("m.to('cpu')\n", None, id="no GPU"),
    ],
)
def test_where_each_rank_takes_the_first_gpu(tmp_path: Path, source: str, line: int | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP + source)
    gpu = read_script(script).first_gpu
    assert (None if gpu is None else gpu.line) == line


def test_what_a_plan_for_sharding_can_not_do_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    plan = Plan(gpus=("GPU0", "GPU1"), strategy="fsdp", shard_size=2, launcher=Launcher(nproc_per_node=2))
    script.write_text(
        "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "dist.init_process_group()\nmodel = DDP(net)\nwith model.join():\n    pass\n"
    )
    with pytest.raises(AdvisorError, match=r"join\(\) \(.*line 5\), which FSDP can't"):
        refuse(plan, read_script(script))
    script.write_text(
        "import os, torch\nrank = os.environ['LOCAL_RANK']\ntorch.ones(1, requires_grad=True).backward()\n"
    )
    with pytest.raises(AdvisorError, match='no DistributedDataParallel call that a plan with strategy="fsdp"'):
        refuse(plan, read_script(script))
