"""What --fix corrects is no finding any more: tried on every script of the rules' own cases."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.executor.check import Checked, check_script
from advisor.fix.fixable import FIXABLE
from advisor.fix.fixes import fix

ROOT = Path(__file__).parents[2]
DDP = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
model = DDP(torch.nn.Linear(2, 2), gradient_as_bucket_view=False)
"""


def scripts() -> Iterator[tuple[str, str]]:
    """Yield the scripts in which a rule is to fire whose findings can be corrected."""
    yield "PAR118", DDP
    for path in sorted((ROOT / "fixtures" / "rules").glob("SCR*/fires-*.toml")):
        case = tomllib.loads(path.read_text())
        if isinstance(case.get("script"), str) and "files" not in case:
            yield f"{path.parent.name}/{path.stem}", case["script"]


def places(checked: Checked) -> list[tuple[str, int | None]]:
    return sorted((finding.name, finding.line) for finding in checked.findings if finding.name in FIXABLE)


def corrected(folder: Path, source: str) -> tuple[Checked, Checked, set[str]]:
    """Check a script, correct it and check it again; return both, and the names of what was corrected."""
    script = folder / "train.py"
    script.write_text(source)
    before = check_script(script)
    done = fix(script.read_bytes(), before.findings, before.kind)
    ast.parse(done.content)
    script.write_bytes(done.content)
    after = check_script(script)
    left = len(places(before)) - len(done.findings)
    assert len(places(after)) == left, (places(after), done.content.decode())
    assert {f.name for f in after.findings} <= {f.name for f in before.findings}  # and it makes nothing worse
    return before, after, {finding.name for finding in done.findings}


@pytest.mark.parametrize(("name", "source"), [pytest.param(*one, id=one[0]) for one in scripts()])
def test_a_corrected_finding_is_gone(tmp_path: Path, name: str, source: str) -> None:
    corrected(tmp_path, source)


def test_each_rule_that_can_be_corrected_is_corrected_somewhere(tmp_path: Path) -> None:
    assert set().union(*(corrected(tmp_path, source)[2] for _, source in scripts())) == FIXABLE


def test_a_second_correction_changes_nothing(tmp_path: Path) -> None:
    for _, source in scripts():
        _, after, _ = corrected(tmp_path, source)
        content = (tmp_path / "train.py").read_bytes()
        assert fix(content, after.findings, after.kind).content == content
