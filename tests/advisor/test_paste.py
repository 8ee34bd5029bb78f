"""Pasted terminal text, taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.probe.text.paste import Token, clean, tokens_of, unwrap


def tokens(text: str) -> list[Token]:
    return tokens_of(clean(text))


def words(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokens(text)]


def test_names_codes_values_and_titles_are_told_apart() -> None:
    assert words("GPU0 mlx5_0 CPU Affinity\nGPU0 X NV12 0-3,8 N/A") == [
        ("device", "GPU0"),
        ("device", "mlx5_0"),
        ("title", "CPU Affinity"),
        ("device", "GPU0"),
        ("code", "X"),
        ("code", "NV12"),
        ("value", "0-3,8"),
        ("value", "N/A"),
    ]


@pytest.mark.parametrize(
    ("glued", "parts"),
    [
        ("GPU0GPU1NIC0", ["GPU0", "GPU1", "NIC0"]),
        ("GPU7mlx5_0mlx5_1", ["GPU7", "mlx5_0", "mlx5_1"]),
        ("GPU0 NODENODEPIX", ["GPU0", "NODE", "NODE", "PIX"]),
        ("GPU0 SYS0-31 0", ["GPU0", "SYS", "0-31", "0"]),
        ("GPU0 NV180-3", ["GPU0", "NV18", "0-3"]),
    ],
)
def test_glued_words_are_parted(glued: str, parts: list[str]) -> None:
    assert [token.text for token in tokens(glued)] == parts


@pytest.mark.parametrize("line", ["GPU 0: NVIDIA A100", "GPU0: busy", "node01:~$ ls", "a1.example.org", "x = 5"])
def test_a_name_in_prose_is_no_device(line: str) -> None:
    assert "device" not in {token.kind for token in tokens(line)}


def test_a_line_of_a_legend_holds_no_code() -> None:
    assert "code" not in {token.kind for token in tokens("  SYS  = Connection\n  X = Self\n  PIX= Connection")}


def test_what_stands_before_the_first_name_of_a_line_is_dropped() -> None:
    assert words("> 2026-01-02 03:04:05 INFO GPU0 X SYS") == [("device", "GPU0"), ("code", "X"), ("code", "SYS")]


def test_a_place_is_a_column_with_tabs_expanded() -> None:
    assert [(token.line, token.column) for token in tokens("\tGPU0\tGPU1\nGPU0\t X ")] == [
        (0, 8),
        (0, 16),
        (1, 0),
        (1, 9),
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        "> ",
        ">",
        "2026-01-0{} 03:04:05,{}00 INFO ",
        "{}:",
        "    {}\t",
        "[{},0]<stdout>:",
        "May  {} host42 job[1{}]: ",
        "gpu{} | ",
    ],
)
def test_what_stands_before_each_line_is_taken_off(prefix: str) -> None:
    lines = ["a comment", "\tGPU0\tGPU1", "GPU0\t X \tSYS", "", "GPU1\tSYS\t X "]
    text = "\n".join(prefix.replace("{}", str(number)) + line for number, line in enumerate(lines))
    assert clean(text) == clean("\n".join(lines))


@pytest.mark.parametrize("line", ["\x1b[4mGPU0\x1b[0m", "[4mGPU0[0m", "\ufeffGPU0", "\u200bGPU0", "\x1b[1;31mGPU0"])
def test_signs_that_are_not_seen_are_taken_out(line: str) -> None:
    assert clean(line) == ["GPU0"]


def test_ruled_lines_are_taken_out() -> None:
    assert clean("| GPU0 |\n|:---|---:|\n+====+\n-----\n| GPU0 |") == ["  GPU0  ", "  GPU0  "]


def test_a_row_broken_at_the_width_of_the_terminal_is_joined_again() -> None:
    rows = [f"GPU{row}    " + "NODE    " * 7 for row in range(2)]
    assert unwrap([rows[0][:42], rows[0][42:], rows[1][:42], rows[1][42:]]) == rows


def test_a_number_is_joined_again_only_where_lines_break_at_one_width() -> None:
    rows = [f"GPU{row}    NV12    NV12" for row in range(2)]
    broken = [part for row in rows for part in (row[:19], row[19:])]
    assert unwrap(broken) == rows
    assert unwrap([f"{broken[0]} ", *broken[1:]]) != rows


@pytest.mark.parametrize("broken", ["CPU Affi\nnity", "CPU\nAffinity", "C\nPU  Affinity", "CPU Affinit\ny"])
def test_a_title_is_known_where_a_line_end_breaks_it(broken: str) -> None:
    assert words(f"GPU0 {broken}\nGPU0 X") == [
        ("device", "GPU0"),
        ("title", "CPU Affinity"),
        ("device", "GPU0"),
        ("code", "X"),
    ]


def test_rows_of_one_length_stay_apart() -> None:
    rows = [f"GPU{row}    " + "SYS     " * 5 for row in range(4)]
    assert unwrap(rows) == rows


@given(st.lists(st.text(st.sampled_from("GPU0 X1-")), max_size=8))
def test_unwrapping_moves_line_ends_and_no_characters(lines: list[str]) -> None:
    assert "".join(unwrap(lines)) == "".join(lines)


@given(st.text())
def test_each_token_stands_where_it_says(text: str) -> None:
    lines = clean(text)
    for token in tokens(text):
        rest = "\n".join(lines[token.line :])[token.column :]
        assert "".join(rest.split()).startswith("".join(token.text.split()))
