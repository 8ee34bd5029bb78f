"""What rules get to know of a script's source."""

from pathlib import Path

import pytest

from advisor.executor.script import read_script
from advisor.executor.script_uses import script_of
from advisor.rules.script import Script

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def seen(folder: Path, source: str) -> Script:
    script = folder / "train.py"
    script.write_text(source)
    return script_of(script, read_script(script))


def test_names_are_spelt_out_with_their_lines(tmp_path: Path) -> None:
    script = seen(tmp_path, HEAD + "model = nn.DataParallel(nn.Linear(1, 1))\n")
    assert {"torch.nn.DataParallel", "torch.nn.Linear"} <= set(script.uses)
    assert script.lines["torch.nn.DataParallel"] == 4
    assert "torch.nn" not in script.uses


def test_a_hook_that_is_handed_over_counts(tmp_path: Path) -> None:
    hook = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
    script = seen(
        tmp_path,
        HEAD + f"from {hook.rpartition('.')[0]} import powerSGD_hook\n"
        "model = DDP(model)\nmodel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)\n",
    )
    assert f"{hook}.powerSGD_hook" in script.uses


def test_a_type_that_is_only_asked_for_does_not_count(tmp_path: Path) -> None:
    script = seen(tmp_path, HEAD + "if isinstance(model, (DDP, nn.DataParallel)):\n    model = model.module\n")
    assert script.uses == ()


def test_constants_of_the_ddp_call(tmp_path: Path) -> None:
    script = seen(tmp_path, HEAD + "DDP(m, device_ids=[rank], bucket_cap_mb=0.5, find_unused_parameters=True)\n")
    assert script.ddp_arguments == {"bucket_cap_mb": 0.5, "find_unused_parameters": True}
    assert script.kind == "ddp"


def test_modules_of_its_own_are_read_but_have_no_lines(tmp_path: Path) -> None:
    (tmp_path / "wrap.py").write_text(HEAD + "def wrap(m):\n    return DDP(m, static_graph=True)\n")
    script = seen(tmp_path, "import wrap\nwrap.wrap(m)\n")
    assert "torch.nn.parallel.DistributedDataParallel" in script.uses
    assert script.ddp_arguments == {"static_graph": True}
    assert "torch.nn.parallel.DistributedDataParallel" not in script.lines


@pytest.mark.parametrize(
    ("source", "line"),
    [
        pytest.param("model = torch.compile(model)\nmodel = DDP(model)\n", 4, id="a model"),
        pytest.param("@torch.compile\ndef norm(x): ...\nmodel = DDP(model)\n", None, id="a decorator"),
        pytest.param("@torch.compile(dynamic=True)\ndef norm(x): ...\nDDP(model)\n", None, id="one with arguments"),
        pytest.param("def step(x): ...\nstep = torch.compile(step)\nDDP(model)\n", None, id="a function"),
    ],
)
def test_the_line_where_a_model_is_compiled(tmp_path: Path, source: str, line: int | None) -> None:
    assert seen(tmp_path, HEAD + source).lines.get("torch.compile") == line


def test_a_syntax_error_leaves_little(tmp_path: Path) -> None:
    assert seen(tmp_path, "def f(:\n") == Script(path=str(tmp_path / "train.py"), kind="unknown")
