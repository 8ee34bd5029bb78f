"""Plans with micro-batches on scripts that make none: refused before anything is trained, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.executor.in_process.micro_batches import MicroBatches

pytestmark = pytest.mark.slow
PLAN = {"accumulation": 3, "micro_batch": 4, "gpus": ["GPU-0", "GPU-1"], "nodes": 1}


class Script:
    """A model under watch; `step` is where the optimizer's hook would be."""

    def __init__(self, **plan: Any) -> None:
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._asked = MicroBatches(PLAN | plan)
        self._asked.watch(self.model)

    def passes(self, number: int, samples: int = 12) -> None:
        for _ in range(number):
            self.model(torch.ones(samples, 2)).sum().backward()

    def step(self, optimizer: Any = None, closure: bool = False) -> None:
        self._asked.before_step(optimizer or self.optimizer, closure)


def test_one_pass_where_the_plan_makes_three_is_refused_with_the_lines_to_change() -> None:
    script = Script()
    script.passes(1)
    with pytest.raises(RuntimeError) as raised:
        script.step()
    assert str(raised.value).splitlines() == [
        "the plan makes 3 micro-batches of 4 samples per optimizer step, the script made one backward pass of 12 "
        "samples; nothing was trained yet: change the loop to",
        "    for i, (x, y) in enumerate(loader):  # batch_size of the loader: 4",
        "        with model.no_sync() if (i + 1) % 3 else contextlib.nullcontext():",
        "            (loss_fn(model(x), y) / 3).backward()",
        "        if (i + 1) % 3 == 0:",
        "            optimizer.step()",
        "            optimizer.zero_grad()",
        'or write "accumulation": 1 in the plan, or let advisor make one: --micro-batch 12 --global-batch 24',
    ]


@pytest.mark.parametrize(("samples", "batch"), [(12, "4"), (7, "its own divided by 3")])
def test_a_plan_that_leaves_the_batch_to_the_script_is_refused_too(samples: int, batch: str) -> None:
    script = Script(micro_batch=None)
    script.passes(1, samples)
    with pytest.raises(
        RuntimeError, match=f"3 micro-batches per optimizer step(.|\n)*batch_size of the loader: {batch}\n"
    ):
        script.step()


def accumulates(script: Script) -> None:
    script.passes(3)
    script.step()
    script.passes(1)  # the rest of an epoch: the first step alone is judged
    script.step()


def warms_up(script: Script) -> None:
    script.optimizer.param_groups[0]["lr"] = 0.0
    script.passes(1)
    script.step()
    script.optimizer.param_groups[0]["lr"] = 0.1
    script.passes(3)
    script.step()


def evaluates_first(script: Script) -> None:
    script.model(torch.ones(2, 2))
    with torch.no_grad():
        script.model(torch.ones(2, 2))
    script.passes(3)
    script.step()


def has_another_optimizer(script: Script) -> None:
    script.passes(1)
    script.step(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    script.passes(2)
    script.step()


def adds_the_losses_up(script: Script) -> None:
    sum((script.model(torch.ones(4, 2)).sum() for _ in range(3)), torch.zeros(())).backward()
    script.step()


@pytest.mark.parametrize("run", [accumulates, warms_up, evaluates_first, has_another_optimizer, adds_the_losses_up])
def test_scripts_with_the_plans_passes_are_left_alone(
    run: Callable[[Script], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run(Script())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("passes", "closure", "made"), [(2, False, 2), (4, False, 4), (1, True, 2)])
def test_another_number_of_passes_is_the_scripts_own(
    passes: int, closure: bool, made: int, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    script.passes(passes)
    script.step(closure=closure)
    said = f"advisor: the script makes {made} backward passes in its first optimizer step, the plan says 3\n"
    assert capsys.readouterr().err == said


def test_a_run_ends_before_its_first_step(scripts: Any, tmp_path: Any) -> None:
    plan = scripts.plan(2, accumulation=3, strategy="fsdp", shard_size=2)  # under DDP: test_strategies.py
    result = scripts.applied("kinds/train.py", str(tmp_path), "clips", plan=plan)
    assert (result.out, result.exit_code) == ("", 1)
    assert "3 micro-batches of 4 samples per optimizer step, the script made one backward pass of 4" in result.err
    assert "in_process" not in result.err
