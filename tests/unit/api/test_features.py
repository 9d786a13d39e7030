"""Features by name."""

from __future__ import annotations

import pytest

from unwind.api.features import ALL, COMPANIONS, DEFAULT, DESCRIPTIONS, UNRECORDED, Feature, parse, written
from unwind.errors import UsageError


def test_a_list_is_read_and_written() -> None:
    assert parse(" karmada, capi,,") == {Feature.KARMADA, Feature.CAPI}
    assert parse("") == frozenset()
    assert parse(written(ALL)) == ALL
    assert written({Feature.PROTECTION, Feature.CAPI}) == "capi,protection"


def test_an_unknown_feature_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown feature 'addon', 'x' in --features \(valid: addons, caaph"):
        parse("addon,x,capi")
    with pytest.raises(UsageError, match="in ConfigMap a/b"):
        parse("x", source="ConfigMap a/b")


def test_addons_are_not_deployed_without_the_gate() -> None:
    with pytest.raises(UsageError, match="feature addons in --features requires capi") as refused:
        parse("karmada,addons")
    assert refused.value.remedy == "use addons,capi,karmada"


def test_companions_are_not_removed_without_the_gate() -> None:
    for feature in COMPANIONS:
        with pytest.raises(UsageError, match=f"feature {feature} in --features requires capi"):
            parse(feature.value)
        assert feature in parse(f"{feature},capi")


def test_companions_are_installed_only_by_name() -> None:
    assert not COMPANIONS & DEFAULT
    assert written(UNRECORDED) == "addons,capi,external,karmada,protection"


def test_each_feature_is_described() -> None:
    assert set(DESCRIPTIONS) == ALL
