"""Comments in a script that silence findings."""

from pathlib import Path

import pytest

from advisor.executor.ignore import heeded, silenced
from advisor.rules.plan import Finding


def finding(line: int | None, file: Path | None, code: str = "SCR101", name: str = "no-sampler") -> Finding:
    place = None if file is None else str(file)
    return Finding(code=code, name=name, severity="error", message="m", remedy="r", file=place, line=line)


def left(script: Path, source: str, line: int = 1, **fields: str) -> bool:
    script.write_text(source)
    return bool(heeded([finding(line, script, **fields)]))


@pytest.mark.parametrize(
    ("source", "stays"),
    [
        pytest.param("f()  # advisor: ignore[SCR101]\n", False, id="its code"),
        pytest.param("f()  # advisor: ignore[SCR103]\n", True, id="another code"),
        pytest.param("f()  # advisor: ignore[SCR103, SCR101]\n", False, id="several"),
        pytest.param("f()  # advisor: ignore\n", False, id="everything"),
        pytest.param("f()  # noqa: F401  # advisor: ignore[SCR101]  # why\n", False, id="behind other comments"),
        pytest.param("f()  #advisor:ignore [scr101]\n", False, id="spelt loosely"),
        pytest.param("f()  # advisor: ignore[no-sampler]\n", False, id="by name"),
        pytest.param("f()  # advisor: ignore[]\n", True, id="no code"),
        pytest.param("f()  # advisor: ignore[SCR101\n", True, id="not closed"),
        pytest.param("f()  # advisor: ignored\n", True, id="another word"),
        pytest.param("f()  # advisor: ignore this if you can\n", True, id="a sentence"),
        pytest.param("f('# advisor: ignore')\n", True, id="in a string"),
        pytest.param("f('''\n# advisor: ignore\n''')\n", True, id="in a string of several lines"),
        pytest.param("f()\n# advisor: ignore\n", True, id="on the next line"),
        pytest.param("f(  # advisor: ignore[SCR101]\n    1,\n)\n", False, id="at the head of a statement"),
        pytest.param("f(\n    1,\n)  # advisor: ignore[SCR101]\n", False, id="at its end"),
        pytest.param("if x:  # advisor: ignore\n    f()\n", False, id="at a condition"),
    ],
)
def test_a_comment_silences_what_it_names_on_its_statement(tmp_path: Path, source: str, stays: bool) -> None:
    assert left(tmp_path / "train.py", source) is stays


def test_a_comment_at_a_condition_says_nothing_of_what_stands_under_it(tmp_path: Path) -> None:
    assert left(tmp_path / "train.py", "if x:  # advisor: ignore\n    f()\n", line=2)
    assert left(tmp_path / "train.py", "# advisor: ignore\nf()\n", line=2)


def test_what_has_no_place_or_no_file_stays(tmp_path: Path) -> None:
    findings = (finding(None, None), finding(1, tmp_path / "gone.py"))
    assert heeded(findings) == findings


def test_a_file_that_python_can_not_read_silences_nothing_more(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"f()  # advisor: ignore\nx = '''\n")
    assert silenced(script).keys() <= {1}
    script.write_bytes(b"# -*- coding: nonsense -*-\nf()  # advisor: ignore\n")
    assert silenced(script) == {}


def test_other_encodings_are_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\nf('\xe9')  # advisor: ignore\n")
    assert heeded([finding(2, script)]) == ()
