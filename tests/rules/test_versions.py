"""Version numbers are compared by their digits, and what is not known is neither older nor newer."""

import pytest

from advisor.rules.versions import at_least, major, older


@pytest.mark.parametrize(
    ("version", "than"), [("2.9.1+cu130", "2.11"), ("2.26.2", "2.26.5"), ("12.6", "12.8"), ("535.183.01", "580")]
)
def test_an_older_version_is_older(version: str, than: str) -> None:
    assert older(version, than)
    assert not at_least(version, than)


@pytest.mark.parametrize(("version", "least"), [("2.11.0+cu130", "2.11"), ("2.28.9", "2.28"), ("13.0", "12.8")])
def test_a_newer_or_equal_version_is_at_least_the_other(version: str, least: str) -> None:
    assert at_least(version, least)
    assert not older(version, least)


@pytest.mark.parametrize("version", [None, "", "unknown"])
def test_an_unknown_version_is_neither(version: str | None) -> None:
    assert not older(version, "2.0")
    assert not at_least(version, "2.0")
    assert major(version) is None
