"""Matching of kinds."""

from __future__ import annotations

import pytest

from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, Resource
from unwind.deleters.registration import Kinds, Match
from unwind.errors import UnwindError

VAULTS = Resource("keyvault.azure.com", "v1api20230701", "vaults", "Vault")


@pytest.mark.parametrize(
    ("kinds", "resource", "match"),
    [
        (Kinds("apps/v1", "Deployment"), DEPLOYMENTS, Match.YES),
        (Kinds("apps/v1", "StatefulSet"), DEPLOYMENTS, Match.NO),
        (Kinds("apps/v2", "Deployment"), DEPLOYMENTS, Match.OTHER_VERSION),
        (Kinds("apps/*", "Deployment"), DEPLOYMENTS, Match.YES),
        (Kinds("extensions/v1", "Deployment"), DEPLOYMENTS, Match.NO),
        (Kinds("v1", "ConfigMap"), CONFIG_MAPS, Match.YES),
        (Kinds("v2", "ConfigMap"), CONFIG_MAPS, Match.OTHER_VERSION),
        (Kinds("apps/v1", "*"), CONFIG_MAPS, Match.NO),
        (Kinds("*", "*"), CONFIG_MAPS, Match.YES),
        (Kinds("*.azure.com/*", "*"), VAULTS, Match.YES),
        (Kinds("*.azure.com/v1", "Vault"), VAULTS, Match.OTHER_VERSION),
        (Kinds("azure.com/*", "*"), VAULTS, Match.NO),
    ],
)
def test_a_kind_is_matched_by_group_version_and_name(kinds: Kinds, resource: Resource, match: Match) -> None:
    assert kinds.match(resource) is match


@pytest.mark.parametrize("text", ["apps/v1/Deployment", "v1/ConfigMap", "*.azure.com/*/*", "*"])
def test_what_is_written_is_what_is_read(text: str) -> None:
    assert str(Kinds.parse(text)) == text


@pytest.mark.parametrize("text", ["", "Deployment", "apps/", "a/b/c/D", "/Deployment"])
def test_what_names_no_kind_is_refused(text: str) -> None:
    with pytest.raises(UnwindError, match="group/version/Kind"):
        Kinds.parse(text)


def test_a_pattern_covers_what_is_narrower_and_nothing_else() -> None:
    assert Kinds.parse("*.azure.com/*/*").covers(Kinds("keyvault.azure.com/*", "Vault"))
    assert Kinds.parse("*").covers(Kinds("apps/*", "*"))
    assert not Kinds.parse("example.dev/v1/Bucket").covers(Kinds("example.dev/*", "Bucket"))
    assert not Kinds.parse("example.dev/v1/Bucket").covers(Kinds("v1", "ConfigMap"))
