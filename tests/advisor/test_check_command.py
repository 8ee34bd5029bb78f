"""`advisor check`: what it prints, for people and for programs, and what it exits with."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

from advisor.cli import main

ROOT = Path(__file__).parents[2]
HEAD = dedent("""\
    import os, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler
    class Rows(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return torch.randn(4), 0
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    data = Rows()
    """)
LOOP = dedent("""\
    model = DDP(torch.nn.Linear(4, 2).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x.to(local_rank)).sum()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
    """)
SPLIT = HEAD + "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\n"
CLEAN = SPLIT + LOOP.replace("3):\n", "3):\n    sampler.set_epoch(epoch)\n")
NO_EPOCH = SPLIT + LOOP  # a warning
UNSPLIT = HEAD + "loader = DataLoader(data, shuffle=True)\n" + LOOP  # an error
LOADER = UNSPLIT.splitlines().index("loader = DataLoader(data, shuffle=True)") + 1


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Check = Callable[..., Said]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a function that writes scripts into an empty folder and checks them there."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, **scripts: str) -> Said:
        for name, source in scripts.items():
            Path(f"{name}.py").write_text(source)
        code = main(["check", *options, *(f"{name}.py" for name in scripts)])
        return Said(code, *capsys.readouterr())

    return run


def codes(said: Said) -> list[str]:
    return [finding["code"] for finding in said.document["findings"]]


def test_an_error_is_shown_with_its_line_and_ends_in_1(check: Check) -> None:
    said = check(train=UNSPLIT)
    assert said.code == 1
    assert f"train.py:{LOADER} error SCR101 data-not-split\n" in said.out
    assert f"  {LOADER} | loader = DataLoader(data, shuffle=True)\n" in said.out
    assert "DistributedSampler" in said.out
    assert said.out.splitlines()[-2] == "train.py (ddp): 1 error"


def test_a_warning_and_a_clean_script_end_in_0(check: Check) -> None:
    assert check(train=NO_EPOCH).code == 0
    said = check(train=CLEAN)
    assert (said.code, said.out) == (0, "train.py (ddp): nothing found\n")


def test_findings_come_in_the_order_of_their_lines(check: Check) -> None:
    said = check("--json", train=UNSPLIT, other=NO_EPOCH)
    places = [(finding["file"], finding["line"]) for finding in said.document["findings"]]
    assert places == sorted(places, key=lambda place: (place[0] != "train.py", place[1]))
    text = check(train=UNSPLIT, other=NO_EPOCH).out
    assert text.index("train.py:") < text.index("other.py:")
    assert "2 scripts: 1 error, 1 warning" in text


def test_one_script_is_the_document_of_the_contract(check: Check) -> None:
    found = check("--json", train=UNSPLIT).document
    assert (found["version"], found["script"], found["kind"]) == (1, "train.py", "ddp")
    (finding,) = found["findings"]
    assert finding.keys() >= {"code", "name", "severity", "message", "facts", "remedy", "file", "line"}
    assert (finding["file"], finding["line"]) == ("train.py", LOADER)


def test_several_scripts_have_one_list_of_findings(check: Check) -> None:
    found = check("--json", train=UNSPLIT, other=CLEAN).document
    assert (found["script"], found["kind"]) == (None, None)
    assert [script["script"] for script in found["scripts"]] == ["train.py", "other.py"]


def test_quiet_is_one_line(check: Check) -> None:
    said = check("-q", train=UNSPLIT)
    assert said.out == f"train.py (ddp): 1 error: SCR101 data-not-split at train.py:{LOADER}\n"


def test_files_are_written_by_their_ending(check: Check) -> None:
    for name in ("out.json", "out.sarif", "out.txt"):
        assert check("-o", name, train=UNSPLIT).out == ""
    assert json.loads(Path("out.json").read_text())["version"] == 1
    assert json.loads(Path("out.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "SCR101"
    assert "error SCR101" in Path("out.txt").read_text()


def test_the_formats_of_other_programs(check: Check) -> None:
    said = check("--format", "github", train=UNSPLIT)
    assert said.code == 1
    assert said.out.startswith(f"::error file=train.py,line={LOADER},title=SCR101 data-not-split::")
    assert len(said.out.splitlines()) == 1
    assert check("--format", "sarif", train=UNSPLIT).document["version"] == "2.1.0"
    assert check("--format", "github", train=CLEAN).out == ""


def test_rules_are_selected_and_ignored(check: Check) -> None:
    assert codes(check("--json", "--ignore", "SCR101", train=UNSPLIT)) == []
    assert codes(check("--json", "--ignore", "data-not-split", train=UNSPLIT)) == []
    assert codes(check("--json", "--select", "SCR102", train=UNSPLIT)) == []
    assert codes(check("--json", "--select", "SCR", train=UNSPLIT)) == ["SCR101"]
    said = check("--select", "SCR999", train=UNSPLIT)
    assert said.code == 2
    assert "there is no rule SCR999" in said.err


def test_a_comment_silences_a_line(check: Check) -> None:
    line = "loader = DataLoader(data, shuffle=True)"
    for comment, left in (("ignore[SCR101]", []), ("ignore", []), ("ignore[SCR102]", ["SCR101"])):
        assert codes(check("--json", train=UNSPLIT.replace(line, f"{line}  # advisor: {comment}"))) == left


def test_what_can_not_be_read_ends_in_2(check: Check) -> None:
    said = check(train="def f(:\n")
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 2
    said = check("absent.py")
    assert said.code == 2
    assert "absent.py" in said.err


def test_one_script_that_can_not_be_read_does_not_hide_the_others(check: Check) -> None:
    said = check("--json", train=UNSPLIT, broken="def f(:\n")
    assert said.code == 2
    assert codes(said) == ["SCR101"]
    assert [unread["script"] for unread in said.document["unread"]] == ["broken.py"]
    assert "Not read\n  broken.py" in check(train=UNSPLIT, broken="def f(:\n").out


def test_a_module_that_two_scripts_share_is_reported_once(check: Check) -> None:
    Path("shared.py").write_text(UNSPLIT)
    said = check("--json", a="import shared\n", b="import shared\n")
    assert [(finding["code"], finding["file"]) for finding in said.document["findings"]] == [("SCR101", "shared.py")]


def test_the_script_is_never_executed(check: Check) -> None:
    victim = Path("precious.txt")
    victim.write_text("years of work")
    delete = "import pathlib\npathlib.Path('precious.txt').unlink()\n"
    Path("helper.py").write_text(delete)
    Path("sitecustomize.py").write_text(delete)
    said = check("--json", "--select", "SCR", train=f"import helper\n{delete}{UNSPLIT}\n{delete}", conftest=delete)
    assert codes(said) == ["SCR101"]
    assert victim.read_text() == "years of work"


def test_no_module_of_the_users_folder_is_imported_by_the_command(tmp_path: Path) -> None:
    """As a process of its own, started in the folder of the script."""
    (tmp_path / "precious.txt").write_text("years of work")
    delete = "import pathlib\npathlib.Path('precious.txt').unlink()\n"
    for name in ("train.py", "ast.py", "tokenize.py", "libcst.py", "torch.py", "json.py"):
        (tmp_path / name).write_text(delete)
    command = [str(Path(sys.executable).with_name("advisor")), "check", "--fix", "--yes", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "precious.txt").exists()


def test_the_entry_for_pre_commit_runs_on_a_file(tmp_path: Path) -> None:
    import shlex

    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "advisor-check"
    assert hook["language"] == "python"
    assert hook["types"] == ["python"]
    program, *words = shlex.split(hook["entry"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert program in scripts
    (tmp_path / "train.py").write_text(UNSPLIT)
    command = [str(Path(sys.executable).with_name(program)), *words, *hook.get("args", ()), "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SCR101" in done.stdout


def test_rules_of_a_users_folder_judge_scripts_too(check: Check) -> None:
    Path("own").mkdir()
    Path("own/own101.py").write_text(
        "from advisor.rules.plan import Finding\nfrom advisor.rules.rule import rule\n"
        "@rule('OWN101', 'too-short')\ndef check(case):\n"
        "    yield Finding(code='OWN101', name='too-short', severity='info', message=case.script.kind, remedy='r')\n"
    )
    assert codes(check("--json", "--rules-dir", "own", train=CLEAN)) == ["OWN101"]
