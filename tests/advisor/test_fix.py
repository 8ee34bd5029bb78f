"""Corrections of scripts: what they write, and where they leave a script alone."""

import ast
from textwrap import dedent

import pytest

from advisor.fix.arguments import bucket_view, map_location
from advisor.fix.fixable import FIXABLE
from advisor.fix.fixes import FIXES, Fix
from advisor.fix.guard import guard
from advisor.fix.loggers import disable_bar, disable_tracker, lone_writer
from advisor.fix.main_process import main_process, negated
from advisor.fix.set_epoch import set_epoch
from advisor.fix.source import Source
from advisor.rules.plan import Finding

HEAD = "import torch.distributed as dist\ndist.init_process_group()\n"
RANKED = HEAD + "rank = dist.get_rank()\n"


def fixed(way: Fix, source: str, mark: str, kind: str = "ddp") -> str:
    """Correct a script at the line that holds `mark`; return the same text where nothing is done."""
    line = next(number for number, text in enumerate(source.splitlines(), 1) if mark in text)
    finding = Finding(code="SCR199", name="x", severity="error", message="m", remedy="r", file="train.py", line=line)
    read = Source(source.encode())
    result = read.with_edits(way(read, finding, kind)).decode()
    ast.parse(result)
    return result


def changed(way: Fix, source: str, mark: str, kind: str = "ddp") -> list[str]:
    """Return the lines that the corrected script has and the other has not."""
    before = source.splitlines()
    return [line for line in fixed(way, source, mark, kind).splitlines() if line not in before]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("torch.load(p)", 'torch.load(p, map_location="cpu")'),
        ("torch.load(p, weights_only=True)", 'torch.load(p, weights_only=True, map_location="cpu")'),
        ("m.load_state_dict(torch.load(p)['m'])", "m.load_state_dict(torch.load(p, map_location=\"cpu\")['m'])"),
        ("torch.load(p, )", 'torch.load(p, map_location="cpu", )'),
        ("torch.load(\n    p,\n)", 'torch.load(\n    p,\n    map_location="cpu",\n)'),
        ("torch.load(\n    p,  # why\n)", 'torch.load(\n    p,  # why\n    map_location="cpu",\n)'),
        ("torch.load(\n    p\n)", 'torch.load(\n    p, map_location="cpu"\n)'),
        ("torch.load(p, **options)", "torch.load(p, **options)"),
        ("torch.load(p, device)", "torch.load(p, device)"),
        ("torch.load(p, map_location=device)", "torch.load(p, map_location=device)"),
    ],
)
def test_map_location_is_added_in_the_layout_of_the_call(call: str, expected: str) -> None:
    assert fixed(map_location, f"import torch\nx = {call}\n", "load") == f"import torch\nx = {expected}\n"


def test_the_bucket_view_is_asked_for() -> None:
    call = "model = DDP(model, device_ids=[0])"
    assert changed(bucket_view, call, "DDP") == ["model = DDP(model, device_ids=[0], gradient_as_bucket_view=True)"]
    call = "model = DDP(model, gradient_as_bucket_view=False)"
    assert changed(bucket_view, call, "DDP") == ["model = DDP(model, gradient_as_bucket_view=True)"]


def test_what_all_ranks_do_is_put_under_a_condition() -> None:
    source = RANKED + "for step in range(3):\n\tprint('a')\n\t# why\n\tprint(f'{loss.item():.3f}')\n\tstep()\n"
    result = fixed(guard, source, "print('a')")
    assert "\tif rank == 0:\n\t\tprint('a')\n" in result  # with the tabs of the file
    assert "\tprint(f'{" in result


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        pytest.param("print(average(loss))", "ddp", id="perhaps a collective inside"),
        pytest.param("print(dist.all_reduce(x))", "ddp", id="a collective inside"),
        pytest.param("torch.save(model.state_dict(), p)", "fsdp", id="state of a sharded model"),
        pytest.param("x = print(1)", "ddp", id="its value is used"),
        pytest.param("print(1); step()", "ddp", id="two statements on a line"),
        pytest.param("if x: print(1)", "ddp", id="one line with its condition"),
    ],
)
def test_a_statement_that_others_may_wait_in_is_left_alone(statement: str, kind: str) -> None:
    assert changed(guard, f"{RANKED}{statement}\n", statement, kind) == []


def test_a_save_of_a_whole_model_is_guarded() -> None:
    source = RANKED + "torch.save(\n    {'model': model.module.state_dict()},\n    path,\n)\n"
    assert fixed(guard, source, "torch.save") == (
        RANKED + "if rank == 0:\n    torch.save(\n        {'model': model.module.state_dict()},\n        path,\n    )\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(HEAD + "rank = dist.get_rank()\nX\n", "rank == 0", id="a name of the module"),
        pytest.param("import os\nr = int(os.environ['RANK'])\nX\n", "r == 0", id="the environment"),
        pytest.param("import os\nr = int(os.environ.get('RANK', 0))\nX\n", "r == 0", id="with a default"),
        pytest.param(HEAD + "r = dist.get_rank()\nmain = r == 0\nX\n", "main", id="a flag"),
        pytest.param("accelerator = Accelerator()\nX\n", "accelerator.is_main_process", id="accelerate"),
        pytest.param("def f(rank, world):\n    X\n", "rank == 0", id="a parameter"),
        pytest.param(HEAD + "def f(local_rank):\n    X\n", "dist.get_rank() == 0", id="the local rank says nothing"),
        pytest.param(
            HEAD + "if a:\n    rank = dist.get_rank()\nX\n", "dist.get_rank() == 0", id="perhaps not bound there"
        ),
        pytest.param(
            "from torch import distributed\nif a:\n    distributed.init_process_group()\nX\n",
            "not distributed.is_initialized() or distributed.get_rank() == 0",
            id="perhaps no group",
        ),
        pytest.param("import torch\ntorch.distributed.init_process_group()\nX\n", "torch.distributed.get_rank() == 0"),
        pytest.param(
            HEAD
            + "class T:\n    def __init__(self):\n        self.rank = dist.get_rank()\n    def f(self):\n        X\n",
            "self.rank == 0",
            id="an attribute",
        ),
        pytest.param(HEAD + "def g():\n    rank = dist.get_rank()\ndef f():\n    X\n", "dist.get_rank() == 0"),
        pytest.param(HEAD + "r = dist.get_rank() if many else 0\nX\n", "r == 0", id="zero when alone"),
        pytest.param("X\n", None, id="nothing is known"),
    ],
)
def test_the_condition_uses_what_is_bound_there(source: str, expected: str | None) -> None:
    read = Source(source.replace("X", "print(1)").encode())
    call = next(call for call in read.calls() if read.code(call) == "print(1)")
    assert main_process(read, call) == expected


def test_the_condition_is_turned_round() -> None:
    assert negated("rank == 0") == "rank != 0"
    assert negated("accelerator.is_main_process") == "not accelerator.is_main_process"
    assert negated("not d.is_initialized() or d.get_rank() == 0") == (
        "not (not d.is_initialized() or d.get_rank() == 0)"
    )


def test_trackers_and_bars_are_switched_off_on_other_ranks() -> None:
    assert changed(disable_tracker, RANKED + 'run = wandb.init(project="a")\n', "wandb.init") == [
        'run = wandb.init(project="a", mode=None if rank == 0 else "disabled")'
    ]
    assert changed(disable_bar, RANKED + "for x in tqdm(loader):\n    pass\n", "tqdm") == [
        "for x in tqdm(loader, disable=rank != 0):"
    ]


def test_a_writer_is_none_on_other_ranks() -> None:
    source = RANKED + "writer = SummaryWriter()\nfor i in range(3):\n    writer.add_scalar('a', i)\nwriter.close()\n"
    assert fixed(lone_writer, source, "SummaryWriter") == (
        RANKED + "writer = SummaryWriter() if rank == 0 else None\nfor i in range(3):\n"
        "    if writer is not None:\n        writer.add_scalar('a', i)\nif writer is not None:\n    writer.close()\n"
    )
    assert changed(lone_writer, f"{source}train(model, writer)\n", "SummaryWriter") == []


EPOCHS = dedent("""\
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(3):
        for x in loader:
            step(x)
    """)


@pytest.mark.parametrize("mark", ["for epoch", "for x", "sampler = Dist", "loader = Data"])
def test_the_sampler_is_told_the_epoch_wherever_the_finding_points(mark: str) -> None:
    assert fixed(set_epoch, EPOCHS, mark) == EPOCHS.replace("3):\n", "3):\n    sampler.set_epoch(epoch)\n")


def test_the_sampler_of_a_loader_is_found_through_it() -> None:
    source = EPOCHS.replace("sampler = Dist", "s = Dist").replace("s = DistributedSampler(data)\n", "")
    source = source.replace("sampler=sampler", "sampler=DistributedSampler(data)")
    assert changed(set_epoch, source.replace("in loader", "in enumerate(loader)"), "for epoch") == [
        "    loader.sampler.set_epoch(epoch)"
    ]


def test_a_loop_variable_that_is_thrown_away_gets_a_name() -> None:
    assert changed(set_epoch, EPOCHS.replace("for epoch", "for _"), "for _") == [
        "for epoch in range(3):",
        "    sampler.set_epoch(epoch)",
    ]


def test_two_samplers_are_told_apart_by_their_loader() -> None:
    source = "valid = DistributedSampler(other)\n" + EPOCHS
    assert changed(set_epoch, source, "for epoch") == ["    sampler.set_epoch(epoch)"]


def test_a_script_keeps_its_line_ends_and_its_encoding() -> None:
    source = Source("\ufeffimport torch\r\nx = torch.load(p)\r\n".encode())
    finding = Finding(code="SCR199", name="x", severity="error", message="m", remedy="r", line=2)
    assert source.with_edits(map_location(source, finding, "ddp")) == (
        '\ufeffimport torch\r\nx = torch.load(p, map_location="cpu")\r\n'.encode()
    )


def test_the_table_of_corrections_is_known_without_libcst() -> None:
    assert FIXES.keys() == FIXABLE
