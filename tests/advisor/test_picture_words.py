"""Text in pictures: short names and line breaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.picture.words import SMALL, flowed, short_gpu_name, shortened, text_width, wrapped


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_a_gpu_is_called_by_its_model(name: str, short: str) -> None:
    assert short_gpu_name(name) == short


def test_a_number_stays_with_its_unit() -> None:
    text = "ring of 326 GB/s"
    lines = wrapped(text, SMALL, text_width("ring of 326", SMALL))
    assert lines == ("ring of", "326 GB/s")


def test_facts_are_broken_between_each_other() -> None:
    assert flowed(["PCIe switch", "", "PIX"], SMALL, 500) == ("PCIe switch · PIX",)
    assert flowed(["PCIe switch", "PIX"], SMALL, text_width("PCIe switch", SMALL)) == ("PCIe switch", "PIX")


def test_a_long_name_loses_its_middle() -> None:
    cut = shortened("enp193s0f0np0", SMALL, 60)
    assert cut.startswith("enp")
    assert cut.endswith("np0")


@given(st.text(max_size=60), st.floats(20, 300))
def test_lines_fit_and_keep_short_words(text: str, room: float) -> None:
    lines = wrapped(text, SMALL, room)
    assert all(text_width(line, SMALL) <= room for line in lines)
    if all(text_width(word, SMALL) <= room for word in text.split()):
        assert "".join("".join(lines).split()) == "".join(text.split())
