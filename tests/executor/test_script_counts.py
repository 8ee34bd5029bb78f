"""What a plain script takes from its training batches beside their losses, seen in its source."""

import textwrap
from pathlib import Path

import pytest

from advisor.executor.own_modules import own_modules
from advisor.executor.script_counts import counted

LOOP = """
for epoch in range(3):
    for x, y in train_loader:
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        {line}
    model.eval()
    for x, y in test_loader:
        hits += (model(x).argmax(1) == y).sum().item()
"""


def line(tmp_path: Path, source: str) -> int | None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    found = counted(own_modules(script))
    return None if found is None else found.line


@pytest.mark.parametrize(
    "said",
    [
        "correct += (out.argmax(1) == y).sum().item()",
        "correct += out.max(1)[1].eq(y).sum()",
        "total += y.size(0)",
        "running += loss.item() * len(x)",
        "running += loss.item() * x.shape[0]",
        "print(epoch, loss.item() / len(x))",
        "predictions.append(out.detach().numpy())",
        "meter.update(accuracy(out, y))",
        "print((out.argmax(1) == y).float().mean().item())",
    ],
)
def test_counts_of_a_training_batch_are_seen(tmp_path: Path, said: str) -> None:
    assert line(tmp_path, LOOP.format(line=said)) == 8


@pytest.mark.parametrize(
    "said",
    [
        "running += loss.item()",
        "losses.append(loss.item())",
        "running += loss.item() / len(train_loader)",
        "print(step * len(x), 100.0 * step / len(train_loader), loss.item())",
        "steps += 1",
    ],
)
def test_losses_are_no_counts_and_an_evaluation_may_count(tmp_path: Path, said: str) -> None:
    assert line(tmp_path, LOOP.format(line=said)) is None


def test_a_function_that_makes_a_step_is_looked_into(tmp_path: Path) -> None:
    source = """
    def step(x, y):
        out = model(x)
        criterion(out, y).backward()
        seen.append(out.argmax(1).tolist())

    for x, y in loader:
        step(x, y)
    """
    assert line(tmp_path, source) == 5


EVALUATION = """
{decorator}
def validate(model, val_loader):
    {before}
    for x, y in val_loader:
        total = criterion(model(x), y)
"""


def test_a_loop_over_a_loader_that_no_backward_pass_follows_is_an_evaluation(tmp_path: Path) -> None:
    assert line(tmp_path, EVALUATION.format(decorator="", before="total = 0")) == 5
    assert line(tmp_path, EVALUATION.format(decorator="", before="model.eval()")) is None
    assert line(tmp_path, EVALUATION.format(decorator="@torch.no_grad()", before="total = 0")) is None
