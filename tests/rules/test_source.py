"""The walk over a script's syntax tree: it never runs the script, never fails on odd ones, and is quick."""

import time
from pathlib import Path

import pytest

from advisor.executor.check import check_script
from advisor.rules.errors import AdvisorError
from advisor.rules.source.source import Source, read_source

HEAD = """import os
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
"""


def read(text: str, **files: str) -> Source:
    return read_source("train.py", {"train.py": text, **{f"{name}.py": text for name, text in files.items()}})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("x = 1\ndef f(:\n", "line 2: invalid syntax", id="does not parse"),
        pytest.param("(" * 1000 + ")" * 1000, "too many nested parentheses", id="parentheses"),
        pytest.param("x = " + "-" * 100_000 + "1\n", "nested too deeply", id="signs"),
        pytest.param("x = 1\n" * 2_000_000, "has 12 MB", id="large"),
    ],
)
def test_what_can_not_be_read_is_one_clear_error(tmp_path: Path, source: str, words: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    with pytest.raises(AdvisorError, match=words):
        check_script(script)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("x = " + " + ".join(["1"] * 900) + "\n", id="a long sum"),
        pytest.param("if a:\n    f()\n" + "elif b:\n    f()\n" * 400, id="many branches"),
        pytest.param("f" + "(1)" * 500 + "\n", id="many calls"),
        pytest.param("".join(f"{' ' * i}if a:\n" for i in range(90)) + " " * 90 + "f()\n", id="deep blocks"),
        pytest.param("def f(x):\n    return f(f(x))\nf(1)\n", id="recursion"),
        pytest.param("class A(A): ...\nA().b.c()\n", id="a class of itself"),
        pytest.param("x = x\nx.y = x\nx.y.y.y()\n[*x] = x\n", id="values of themselves"),
    ],
)
def test_odd_scripts_are_walked_to_their_end(source: str) -> None:
    events = read(source + "import torch\ntorch.manual_seed(0)\n").events
    assert events[-1].name == "torch.manual_seed"


def test_the_script_is_never_executed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    (tmp_path / "beside.py").write_text(f"import os\nos.remove({str(kept)!r})\n")
    (tmp_path / "train.py").write_text(f"import beside\nimport os\nos.remove({str(kept)!r})\n")
    check_script(tmp_path / "train.py")
    assert kept.exists()


def test_five_thousand_lines_take_a_second(tmp_path: Path) -> None:
    train = """
def train{0}(net, loader, device):
    model = torch.nn.parallel.DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save(model.module.state_dict(), f"epoch{{epoch}}.pt")
    dist.barrier()

train{0}(torch.nn.Linear(8, 1), None, None)
"""
    script = tmp_path / "train.py"
    script.write_text(HEAD + "".join(train.format(i) for i in range(5000 // train.count("\n") + 1)))
    start = time.process_time()
    check_script(script)
    assert time.process_time() - start < 3  # seconds; under one where nothing else runs


def test_a_condition_on_the_rank_is_known_through_functions_names_and_modules() -> None:
    source = read(
        "from helpers import is_main\nfrom helpers import work as go\nif is_main():\n    go()\n",
        helpers="import torch.distributed as dist\n"
        "def is_main():\n    return not dist.is_initialized() or dist.get_rank() == 0\n"
        "def work():\n    dist.barrier()\n",
    )
    barrier = next(source.calls("torch.distributed.barrier"))
    assert (barrier.file, barrier.line) == ("helpers.py", 5)
    assert barrier.by_rank is not None
    assert (barrier.by_rank.split, barrier.by_rank.line) == ("first", 3)


@pytest.mark.parametrize(
    ("condition", "split"),
    [
        ("rank == 0", "first"),
        ("not rank", "first"),
        ("0 == rank", "first"),
        ("rank in (-1, 0)", "first"),
        ("rank", "others"),
        ("rank != 0", "others"),
        ("rank > 0", "others"),
        ("rank == 3", "some"),
        ("rank == 0 and x", "first"),
        ("not x or rank == 0", "unsure"),
        ("not dist.is_initialized() or rank == 0", "first"),
        ("int(os.environ['RANK']) == 0", "first"),
        ("args.is_main_process", "first"),
        ("rank == -1", None),
        ("dist.get_world_size() > 1", None),
        ("x", None),
    ],
)
def test_which_ranks_a_condition_lets_in(condition: str, split: str | None) -> None:
    guard = next(read(f"{HEAD}if {condition}:\n    print()\n").calls("print")).guards[0]
    assert (guard.split if guard.taint and guard.split else None) == split


def test_what_a_collective_has_made_equal_differs_no_more() -> None:
    source = read(
        HEAD + "value = torch.tensor(float(rank))\nif value > 1:\n    print('a')\n"
        "dist.all_reduce(value)\nif value.item() > 1:\n    print('b')\n"
    )
    before, after = (event.guards[0].taint for event in source.calls("print"))
    assert before == {"rank"}
    assert after == {"reduced"}
