"""Plain scripts on two ranks: trained as one process trains them. benchmarks/plain.py runs many more."""

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.executor.in_process.plain_share import split
from advisor.executor.proof import difference, proof_of, surely_equal
from advisor.executor.records import ProofStep


def steps(*norms: float, loss: float = 1.0) -> list[ProofStep]:
    return [ProofStep(losses=(loss,), norm=norm, dtypes=("float32",), where="") for norm in norms]


@pytest.mark.parametrize(("whole", "ranks"), [(32, 2), (33, 4), (7, 3), (3, 3)])
def test_slices_are_disjoint_and_make_up_the_batch(whole: int, ranks: int) -> None:
    shares = [split(whole, rank, ranks) for rank in range(ranks)]
    assert [i for share in shares for i in range(share.start, share.stop)] == list(range(whole))
    assert max(share.samples for share in shares) - min(share.samples for share in shares) <= 1


def test_a_rank_without_a_sample_takes_one_that_does_not_count() -> None:
    assert [(share.start, share.stop, share.counts) for share in (split(1, 0, 2), split(1, 1, 2))] == [
        (0, 1, True),
        (0, 1, False),
    ]


def test_a_few_roundings_are_no_difference_in_any_training() -> None:
    assert surely_equal(steps(1.0, 1.0), steps(1.000003, 1.000003))
    assert not surely_equal(steps(1.0, 1.0), steps(1.0, 1.00002))
    assert proof_of(steps(1.0), steps(1.0 + 1e-6), "mean").largest == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("other", [steps(1.001), steps(1.0, loss=0.9), steps(1.0, 1.0), steps(float("nan"))])
def test_what_rounding_does_not_explain_is_a_difference(other: list[ProofStep]) -> None:
    assert difference(steps(1.0), other) is not None


def test_more_is_none_where_roundings_in_the_first_weights_make_as_much() -> None:
    one, other, nudged = steps(1.0, 1.0), steps(1.0, 1.001), steps(1.0, 1.0002)
    assert difference(one, other) is None  # in some training it may be
    assert difference(one, other, nudged) is None
    assert difference(one, other, one) is not None
    assert difference(one, steps(1.0, 1.01), nudged) is not None
    assert difference(one, steps(1.00001, 1.0), steps(1.000002, 1.0)) is None
    for much in (steps(1.0, 1.5), steps(1.001, 1.0)):  # however much it explains
        assert difference(one, much) is not None
        assert difference(one, much, much) is not None


@pytest.mark.slow
def test_a_plain_script_trains_as_in_one_process(scripts: Any, tmp_path: Path) -> None:
    """It loads with workers, evaluates between two steps, normalises by batches, and reads back what it has saved."""
    source = (Path(__file__).parents[2] / "fixtures" / "scripts" / "plain" / "eval_between.py").read_text()
    folders = [tmp_path / "alone", tmp_path / "both"]
    for folder in folders:
        folder.mkdir()
        placed = source.replace('"best.pt"', repr(str(folder / "best.pt")))
        (folder / "train.py").write_text(placed.replace('"last.pt"', repr(str(folder / "last.pt"))))
    alone = scripts.alone(str(folders[0] / "train.py"))
    both = scripts.applied(str(folders[1] / "train.py"), plan=scripts.plan(ranks=2))
    assert (alone.exit_code, both.exit_code) == (0, 0), both.err
    assert both.out == alone.out  # losses with five digits
    assert scripts.log("1.out") == alone.out
    for name in ("best.pt", "last.pt"):
        one, other = (torch.load(folder / name) for folder in folders)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    proof = scripts.report().proof
    assert proof is not None
    assert (proof.steps, proof.loss) == (5, "mean")
    assert proof.largest < proof.tolerance
    assert "5 steps on 2 ranks equal to one process" in both.err
    assert not list((scripts.folder).glob("files-*"))


@pytest.mark.slow
def test_batches_of_no_loader_are_divided_where_a_model_is_called(scripts: Any, tmp_path: Path) -> None:
    source = """
import torch

torch.manual_seed(0)
x = torch.randn(60, 8)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    order, hits = torch.randperm(60), 0
    for i in range(0, 60, 17):
        out = model(x[order[i : i + 17]])
        loss = torch.nn.functional.cross_entropy(out, y[order[i : i + 17]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (out.argmax(1) == y[order[i : i + 17]]).sum().item()
    print(epoch, hits, f"{loss.item():.4f}")
"""
    (tmp_path / "own_batches.py").write_text(source)
    alone = scripts.alone(str(tmp_path / "own_batches.py"))
    both = scripts.applied(str(tmp_path / "own_batches.py"), plan=scripts.plan(ranks=2))
    assert (alone.exit_code, both.exit_code) == (0, 0), both.err
    assert both.out == alone.out
    proof = scripts.report().proof
    assert proof is not None
    assert proof.loss == "whole"
