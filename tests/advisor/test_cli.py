"""The command line through its own door: answers, files, errors and exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.cli import main

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "fixtures" / "machines"
A10G = str(MACHINES / "4xa10g-pcie3x8.json")


class Said:
    """What one command printed and returned."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Advisor = Callable[..., Said]


@pytest.fixture
def advisor(capsys: pytest.CaptureFixture[str]) -> Advisor:
    def run(*arguments: str) -> Said:
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run


def test_thirteen_billion_on_four_a10g_do_not_fit(advisor: Advisor) -> None:
    said = advisor("recommend", "--params", "13e9", "--machine", A10G)
    assert said.code == 1
    for words in ("Does not fit", "208 GB", "52 GB", "--lora-rank 16", "--allow cpu-offload"):
        assert words in said.out


def test_the_plan_is_an_answer_as_json(advisor: Advisor) -> None:
    said = advisor("recommend", "--params", "1.3b", "--machine", A10G, "--json")
    answer = json.loads(said.out)
    assert (said.code, answer["version"], answer["verdict"]) == (0, 1, "fits")
    assert answer["plan"]["global_batch"] == answer["job"]["global_batch"]
    assert answer["predicted"]["memory"]["total"] <= answer["predicted"]["memory"]["available"]
    low, high = answer["predicted"]["step_seconds_range"]
    assert low < answer["predicted"]["step_seconds"] < high
    assert any(assumed["what"] == "architecture" for assumed in answer["assumptions"])


@pytest.mark.parametrize("text", ["13b", "13B", "13e9", "13000000000", "13000M"])
def test_sizes_are_read_as_people_type_them(advisor: Advisor, text: str) -> None:
    answer = json.loads(advisor("recommend", "--params", text, "--machine", A10G, "--json").out)
    assert answer["job"]["params"] == 13_000_000_000


def test_explicit_sizes_are_counted(advisor: Advisor) -> None:
    options = ["--layers", "12", "--hidden", "768", "--heads", "12", "--vocab", "50304", "--seq", "1024"]
    answer = json.loads(advisor("recommend", *options, "--machine", A10G, "--json").out)
    assert answer["job"]["params"] == 163_109_376


def test_a_saved_probe_reads_back_to_the_same_report(
    advisor: Advisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for source in sorted(MACHINES.glob("*.json")):
        copy = Path("machine.json")
        assert advisor("probe", "--machine", str(source), "-o", str(copy)).code == 0
        first, _, _ = advisor("probe", "--machine", str(source)).out.partition("The same again")
        again, _, command = advisor("probe", "--machine", str(copy)).out.partition("The same again")
        assert again == first
        assert str(copy) in command
        assert json.loads(copy.read_text())["version"] == 1


def test_a_matrix_without_names_takes_the_gpu_from_the_options(advisor: Advisor, tmp_path: Path) -> None:
    matrix = tmp_path / "topo.txt"
    matrix.write_text("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-15\t0\nGPU1\tPHB\t X \t0-15\t0\n")
    nameless = advisor("recommend", "--params", "350M", "--machine", str(matrix))
    assert nameless.code == 2
    assert "--gpu a10g" in nameless.err
    assert advisor("recommend", "--params", "350M", "--machine", str(matrix), "--gpu", "a10g").code == 0
    assert advisor("recommend", "--params", "350M", "--machine", str(matrix), "--gpu-memory", "24GB").code == 0


def test_quiet_gives_one_line_and_a_file_takes_the_report(advisor: Advisor, tmp_path: Path) -> None:
    assert len(advisor("recommend", "--params", "1e9", "--machine", A10G, "-q").out.splitlines()) == 1
    report = tmp_path / "report.txt"
    said = advisor("recommend", "--params", "1e9", "--machine", A10G, "-o", str(report))
    assert (said.code, said.out) == (0, "")
    assert "Candidates" in report.read_text()


def test_a_picture_takes_the_place_of_the_report(advisor: Advisor, tmp_path: Path) -> None:
    picture = tmp_path / "topology.svg"
    said = advisor("probe", "--machine", A10G, "-o", str(picture))
    assert (said.code, said.out) == (0, "")
    assert picture.read_text().startswith("<?xml")


def test_an_unknown_ending_takes_the_report(advisor: Advisor, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    assert advisor("probe", "--machine", A10G, "-o", str(notes)).code == 0
    assert "4x NVIDIA A10G" in notes.read_text()


def test_the_page_of_a_rule_is_found_by_code_and_by_name(advisor: Advisor) -> None:
    assert "What to do" in advisor("explain", "mem101").out
    assert advisor("explain", "states-exceed-memory").code == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["recommend", "--params", "-1", "--machine", A10G], "-1"),
        (["recommend", "--params", "0", "--machine", A10G], "out of range"),
        (["recommend", "--params", "many", "--machine", A10G], "'many'"),
        (["recommend", "--machine", A10G], "size of the model"),
        (["recommend", "--params", "1e9", "--gpus", "9", "--machine", "8x h100"], "--gpus 9"),
        (["recommend", "--params", "1e9", "--heads", "7", "--machine", A10G], "--layers"),
        (["recommend", "--layers", "2", "--hidden", "100", "--heads", "7", "--machine", A10G], "heads"),
        (["recommend", "--params", "1e9", "--only", "tp", "--machine", A10G], "'tp'"),
        (["recommend", "--params", "1e9", "--machine", "nowhere.json"], "nowhere.json"),
        (["recommend", "--params", "1e9", "--machine", A10G, "-o", "/nowhere/plan.json"], "/nowhere/plan.json"),
        (["recommend", "--params", "1e9", "--machine", A10G, "-o", "plan.svg"], ".json"),
        (["probe", "--machine", A10G, "-o", "topology.pdf"], ".svg, .png, .html, .dot, .graphml or .json"),
        (["probe", "--machine", A10G, "-o", "/nowhere/topology.svg"], "/nowhere/topology.svg"),
        (["recommend", "--params", "1e9", "--gpu", "a10g"], "--gpu"),
        (["recommend", "--param", "1e9"], "--param"),
        (["apply", "nowhere.py"], "nowhere.py"),
        (["apply"], "SCRIPT"),
        (["apply", "--plan", "nowhere.json", "train.py"], "nowhere.json"),
        (["apply", "--machine", A10G, "train.py"], "--machine"),
        (["explain", "XYZ1"], "XYZ1"),
        (["frobnicate"], "frobnicate"),
        ([], "COMMAND"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_a_wrong_call_gets_two_lines_and_exit_code_2(advisor: Advisor, arguments: list[str], what: str) -> None:
    said = advisor(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 2
    assert what in said.err
    assert "Traceback" not in said.err


def test_a_stored_recommendation_is_a_plan_and_a_misfit_is_not(advisor: Advisor, tmp_path: Path) -> None:
    machine = str(MACHINES / "2x3090-bridge.json")
    script = str(ROOT / "examples" / "train_gpt.py")
    stored = tmp_path / "plan.json"
    asked = ["recommend", "--params", "125M", "--only", "ddp", "--machine", machine, "-o", str(stored)]
    assert advisor(*asked).code == 0
    said = advisor("apply", "--plan", str(stored), "--dry-run", "--machine", machine, script, "--", "--help")
    assert said.code == 0
    assert (
        said.out.replace("\\\n    ", "").rstrip().endswith("train_gpt.py -- --help")
    )  # whatever the length of the path
    assert "NCCL_DEBUG=WARN" in said.out
    assert "--nproc-per-node=2" in said.out
    assert advisor("recommend", "--params", "70e9", "--machine", machine, "-o", str(stored)).code == 1
    assert "does not fit" in advisor("apply", "--plan", str(stored), "--dry-run", "--machine", machine, script).err
