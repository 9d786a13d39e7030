"""Which versions of Kubernetes an add-on says it is for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.addons import upgrade_rules
from unwind.api.fields import Unknown


def has(text: str, version: str) -> bool:
    supported, number = upgrade_rules.parse_range(text), upgrade_rules.version_number(version)
    assert not isinstance(supported, Unknown)
    assert not isinstance(number, Unknown)
    return supported.has(number)


@pytest.mark.parametrize("version", ["v1.29.0", "v1.29.7", "v1.30.0", "v1.33.9", "1.31.2", "v1.32.1+k3s1"])
def test_a_version_within_the_range_is_supported(version: str) -> None:
    assert has(">=1.29 <1.34", version)


@pytest.mark.parametrize("version", ["v1.28.15", "v1.34.0", "v1.34.0-rc.1", "v1.40.0", "v2.0.0", "v0.30.0"])
def test_a_version_outside_of_it_is_not(version: str) -> None:
    assert not has(">=1.29 <1.34", version)


def test_versions_are_compared_as_numbers_and_not_as_text() -> None:
    assert has(">1.9", "v1.10.0")
    assert not has("<1.9", "v1.10.0")


def test_two_numbers_stand_for_all_their_patches() -> None:
    assert has("<=1.33", "v1.33.5")
    assert not has(">1.33", "v1.33.5")
    assert has("=1.33", "v1.33.5")
    assert not has("!=1.33", "v1.33.5")


def test_three_numbers_are_meant_exactly() -> None:
    assert has(">=1.30.2", "v1.30.2")
    assert not has(">=1.30.2", "v1.30.1")
    assert not has("<=1.30.2", "v1.30.3")
    assert has("!=1.30.2", "v1.30.3")


@pytest.mark.parametrize("text", [" >=1.29   <1.34 ", ">= 1.29 < 1.34", ">=v1.29 <v1.34"])
def test_spaces_and_a_leading_v_make_no_difference(text: str) -> None:
    assert upgrade_rules.parse_range(text) == upgrade_rules.parse_range(">=1.29 <1.34")


@pytest.mark.parametrize(
    "text",
    ["", " ", "1.29", ">=1", ">=1.29,<1.34", ">=1.29<1.34", "=>1.29", "~1.29", ">=1.x", ">=1.29 and more", ">=01.2"],
)
def test_what_is_not_understood_is_unknown(text: str) -> None:
    assert isinstance(upgrade_rules.parse_range(text), Unknown)


@pytest.mark.parametrize("text", ["", "v1.31", "latest", "v1.31.0 ", "v1.31.0.1", "1.31.0\n"])
def test_what_is_no_version_is_unknown(text: str) -> None:
    assert isinstance(upgrade_rules.version_number(text), Unknown)


@given(st.text(max_size=40))
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    found = upgrade_rules.parse_range(text)
    assert isinstance(found, Unknown) or found.comparisons


NUMBERS = st.tuples(*[st.integers(0, 99)] * 3)


@given(NUMBERS, NUMBERS)
def test_a_version_is_always_on_one_side_of_another(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    version, limit = (".".join(map(str, it)) for it in (one, other))
    assert has(f">={limit}", version) is not has(f"<{limit}", version)
    assert has(f">={limit} <={limit}", version) is has(f"={limit}", version)
