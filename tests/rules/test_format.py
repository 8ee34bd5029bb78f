"""Numbers as people read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rules import format as fmt

UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@pytest.mark.parametrize(
    ("size", "text"),
    [(208e9, "208 GB"), (24.1e9, "24.1 GB"), (512e6, "512 MB"), (999.7e6, "1 GB"), (0, "0 B"), (None, "?")],
)
def test_memory_is_decimal(size: float | None, text: str) -> None:
    assert fmt.memory(size) == text


def test_memory_as_torch_counts_it_is_binary() -> None:
    assert [fmt.binary(64 * 2**20), fmt.binary(85_520_809_984)] == ["64 MiB", "79.6 GiB"]


@given(st.floats(1, 9e17))
def test_memory_reads_back_within_half_a_per_cent(size: float) -> None:
    number, unit = fmt.memory(size).split()
    assert float(number) * UNITS[unit] == pytest.approx(size, rel=0.0051)


@given(st.floats(1e-9, 1e8))
def test_durations_read_back_within_half_a_per_cent(duration: float) -> None:
    number, unit = fmt.seconds(duration).split()
    assert float(number) * TIMES[unit] == pytest.approx(duration, rel=0.0051)


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0.278, "278 ms"), (1.9, "1.9 s"), (75, "75 s"), (720, "12 min"), (18e-6, "18 us"), (0, "0 s")],
)
def test_durations_take_the_unit_that_suits(duration: float, text: str) -> None:
    assert fmt.seconds(duration) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.26, 0.31, "260-310 ms"),
        (0.95, 1.2, "0.95-1.20 s"),
        (2, 2, "2 s"),
        (1e-9, 1, "0.000000001-1 s"),
        (0, 0, "0 s"),
    ],
)
def test_ranges_share_a_unit(low: float, high: float, text: str) -> None:
    assert fmt.seconds_range(low, high) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(13e9, "13B"), (1.3e9, "1.3B"), (125e6, "125M"), (12_400, "12.4k"), (8192, "8192"), (0.5, "0.5")],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert fmt.count(number) == text


@given(st.lists(st.floats(1, 1e13), min_size=1, max_size=6))
def test_a_column_has_one_unit_and_no_zero_for_something(sizes: list[float]) -> None:
    cells = fmt.memory_column(sizes)
    assert len({cell.split()[1] for cell in cells}) == 1
    assert all(cell.startswith("<") or float(cell.split()[0]) > 0 for cell in cells)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ([*range(32), *range(64, 96)], "0-31,64-95"),
        (range(0, 64, 2), "0-62:2"),
        ([0, 2, 4], "0,2,4"),
        ([5], "5"),
        ([], ""),
    ],
)
def test_processors_are_listed_as_linux_does(cpus: list[int], text: str) -> None:
    assert fmt.cpu_list(cpus) == text


@given(st.sets(st.integers(0, 300)))
def test_a_processor_list_reads_back(cpus: set[int]) -> None:
    found: set[int] = set()
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", fmt.cpu_list(cpus)):
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    assert found == cpus


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["GPU0", "GPU1", "GPU2", "GPU6"], "GPU0-2,6"),
        (["mlx5_2", "mlx5_0", "mlx5_1"], "mlx5_0-2"),
        (["mlx5_0", "ens8", "bond", "mlx5_1"], "mlx5_0-1, ens8, bond"),
        (["GPU3"], "GPU3"),
        ([], ""),
    ],
)
def test_devices_that_differ_in_a_number_are_folded(names: list[str], text: str) -> None:
    assert fmt.ids(names) == text


@pytest.mark.parametrize(("fraction", "text"), [(0.034, "3.4 %"), (-0.061, "-6.1 %"), (0.5, "50 %"), (1.234, "123 %")])
def test_fractions_are_per_cent(fraction: float, text: str) -> None:
    assert fmt.percent(fraction) == text


def test_nouns_agree_with_their_number() -> None:
    assert [fmt.plural(1, "rank"), fmt.plural(8, "rank"), fmt.plural(2, "process")] == [
        "1 rank",
        "8 ranks",
        "2 processes",
    ]


def test_a_slow_and_a_fast_link_share_a_unit() -> None:
    assert [fmt.bandwidth_range(10e9, 12e9), fmt.bandwidth_range(9e8, 12e9)] == ["10-12 GB/s", "900 MB/s-12 GB/s"]
