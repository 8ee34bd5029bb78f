"""The checklist: its page, and its answers from a plan's own numbers."""

from pathlib import Path

import pytest

from advisor.probe.load import load_machine
from advisor.rules.checklist import checklist_of, page
from advisor.rules.errors import AdvisorError
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine
from advisor.rules.recommend import recommend

ROOT = Path(__file__).parents[2]


def answers(params: float, machine: Machine, global_batch: int = 64) -> dict[str, str]:
    architecture, seq = assume_architecture(params)
    size = int(params)
    job = Job(params=size, trainable_params=size, architecture=architecture, seq=seq, global_batch=global_batch)
    items = checklist_of(recommend(job, machine), machine).items
    return {item.title: "\n".join(item.answers) for item in items}


def test_the_page_in_docs_is_the_one_that_explain_prints() -> None:
    assert (ROOT / "docs" / "checklist.md").read_text() == f"# Checklist\n\n{page()}\n"


def test_each_question_is_answered_with_numbers_of_the_plan() -> None:
    machine = load_machine("4x a10g 24g")
    found = answers(1.3e9, machine)
    assert len(found) == 6
    assert all(found.values())
    assert "199 buckets for 5.2 GB of gradients" in found["Bucket size first"]
    assert "1.3B x 16 B" in found["What theory allows"]
    assert "NCCL_DEBUG=WARN, by ENV101" in found["NCCL variables are configuration, not tuning"]


def test_one_process_has_nothing_to_communicate() -> None:
    found = answers(1.2e8, load_machine("1x h100"))
    assert "nothing is communicated" in found["Compute or communication"]
    assert "one GPU: no links" in found["Look at the links before choosing a strategy"]


def test_without_a_plan_there_is_no_answer() -> None:
    with pytest.raises(AdvisorError, match="no plan to answer from"):
        answers(7e10, load_machine("1x a10g"))
