"""The Azure resource of an object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.external.azure.scenes import CACHE, CACHES, GROUP, SUBSCRIPTION, made
from unwind.api.names import AZURE_FINALIZER, AZURE_RESOURCE_ID_ANNOTATION
from unwind.api.resources import Resource
from unwind.deleters.outcomes import PermanentError
from unwind.external.azure.resource_ids import ArmId, AzureTarget, NeverCreated, api_version, is_of_type, target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CACHE, (SUBSCRIPTION, "rg", "Microsoft.Cache/redis", "one")),
        (GROUP, (SUBSCRIPTION, "rg", "Microsoft.Resources/resourceGroups", "rg")),
        (
            GROUP.replace("resourceGroups", "resourcegroups"),
            (SUBSCRIPTION, "rg", "Microsoft.Resources/resourceGroups", "rg"),
        ),
        (f"{CACHE}/firewallRules/r", (SUBSCRIPTION, "rg", "Microsoft.Cache/redis/firewallRules", "r")),
        (
            f"{CACHE}/providers/Microsoft.Authorization/locks/l",
            (SUBSCRIPTION, "rg", "Microsoft.Authorization/locks", "l"),
        ),
        ("/providers/Microsoft.Subscription/aliases/a", ("", "", "Microsoft.Subscription/aliases", "a")),
        (
            f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.X/ys/z (1)",
            (SUBSCRIPTION, "", "Microsoft.X/ys", "z (1)"),
        ),
    ],
)
def test_an_id_is_taken_apart(text: str, expected: tuple[str, str, str, str]) -> None:
    id_ = ArmId.parse(text)
    assert (id_.subscription, id_.resource_group, id_.type, id_.name) == expected
    assert id_.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one",
        "/",
        "/subscriptions",
        f"/subscriptions/{SUBSCRIPTION}",  # a whole subscription
        "/subscriptions/not-a-guid/resourceGroups/rg",
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups",
        f"{GROUP}/providers/Microsoft.Cache/redis",
        f"{GROUP}/providers/Microsoft.Cache",
        f"{GROUP}/redis/one",
        f"{GROUP}/providers/Cache/redis/one",
        f"{CACHE}/",
        f"{CACHE}/../two",
        f"{CACHE}?api-version=1",
        f"{CACHE}#there",
        f"{CACHE}%2f..",
        f"{CACHE}\n",
        f"https://elsewhere.example{CACHE}",
        f"/{CACHE}",
    ],
)
def test_what_is_no_id_of_a_resource_holds(text: str) -> None:
    with pytest.raises(PermanentError, match="invalid ARM id"):
        ArmId.parse(text)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1api20230701", "2023-07-01"),
        ("v1api20220801preview", "2022-08-01-preview"),
        ("v1api20220801storage", "2022-08-01"),
        ("v1api20230501previewstorage", "2023-05-01-preview"),
        ("v20230701", "2023-07-01"),
        ("v20230501preview", "2023-05-01-preview"),
        ("v1beta20200601", "2020-06-01"),
        ("v1alpha1api20200601", "2020-06-01"),
    ],
)
def test_the_version_of_the_api_is_that_of_the_kind(version: str, expected: str) -> None:
    assert api_version(Resource("cache.azure.com", version, "redis", "Redis")) == expected


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v2023", "v1api2023070", "v120230701", "20230701"])
def test_a_kind_that_is_not_made_of_an_api_of_azure_is_held(version: str) -> None:
    with pytest.raises(PermanentError, match="no Azure Resource Manager API version"):
        api_version(Resource("sql.azure.com", version, "users", "User"))


def bare(**more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "one", **more.pop("metadata", {})}, **more}


def test_the_annotation_and_the_status_say_which_resource_it_is() -> None:
    expected = AzureTarget(CACHE, "2023-04-01")
    assert target(made(CACHES, CACHE), CACHES) == expected
    assert target(bare(metadata={"annotations": {AZURE_RESOURCE_ID_ANNOTATION: CACHE}}), CACHES) == expected
    assert target(bare(status={"id": CACHE}), CACHES) == expected


def test_an_annotation_and_a_status_that_differ_only_in_case_agree() -> None:
    obj = made(CACHES, CACHE)
    obj["status"]["id"] = CACHE.upper()
    assert target(obj, CACHES) == AzureTarget(CACHE, "2023-04-01")


def test_an_annotation_and_a_status_that_disagree_hold() -> None:
    obj = made(CACHES, CACHE)
    obj["status"]["id"] = f"{GROUP}/providers/Microsoft.Cache/redis/two"
    with pytest.raises(PermanentError, match="in its annotation, but"):
        target(obj, CACHES)


@pytest.mark.parametrize(
    "obj",
    [
        bare(),
        bare(status={}),
        bare(status={"conditions": [{"type": "Ready", "status": "False", "reason": "WaitingForOwner"}]}),
    ],
)
def test_what_was_never_claimed_was_never_created(obj: dict[str, Any]) -> None:
    assert isinstance(target(obj, CACHES), NeverCreated)


@pytest.mark.parametrize(
    ("obj", "trace"),
    [
        (bare(metadata={"finalizers": [AZURE_FINALIZER]}), "finalizer"),
        (bare(status={"conditions": [{"type": "Ready", "status": "True"}]}), "Ready"),
        (bare(status={"location": "westeurope"}), "location"),
        (bare(status={"id": "not an ARM id"}), "id"),
    ],
)
def test_what_has_left_a_trace_but_no_id_is_held(obj: dict[str, Any], trace: str) -> None:
    with pytest.raises(PermanentError, match=f"but its {trace}"):
        target(obj, CACHES)


@pytest.mark.parametrize(
    ("group", "kind", "arm_type"),
    [
        ("cache", "Redis", "Microsoft.Cache/redis"),
        ("cache", "RedisFirewallRule", "Microsoft.Cache/redis/firewallRules"),
        ("cache", "RedisEnterpriseDatabase", "Microsoft.Cache/redisEnterprise/databases"),
        ("keyvault", "Vault", "Microsoft.KeyVault/vaults"),
        ("resources", "ResourceGroup", "Microsoft.Resources/resourceGroups"),
        ("containerservice", "ManagedClustersAgentPool", "Microsoft.ContainerService/managedClusters/agentPools"),
        ("containerregistry", "Registry", "Microsoft.ContainerRegistry/registries"),
        ("managedidentity", "UserAssignedIdentity", "Microsoft.ManagedIdentity/userAssignedIdentities"),
        ("network", "PublicIPAddress", "Microsoft.Network/publicIPAddresses"),
        ("network", "VirtualNetworksSubnet", "Microsoft.Network/virtualNetworks/subnets"),
        ("network", "DnsZonesARecord", "Microsoft.Network/dnsZones/A"),
        ("network", "PrivateDnsZonesCNAMERecord", "Microsoft.Network/privateDnsZones/CNAME"),
        ("network.frontdoor", "WebApplicationFirewallPolicy", "Microsoft.Network/webApplicationFirewallPolicies"),
        ("storage", "StorageAccountsBlobService", "Microsoft.Storage/storageAccounts/blobServices"),
        ("authorization", "RoleAssignment", "Microsoft.Authorization/roleAssignments"),
        ("subscription", "Alias", "Microsoft.Subscription/aliases"),
        ("dbforpostgresql", "FlexibleServersDatabase", "Microsoft.DBforPostgreSQL/flexibleServers/databases"),
    ],
)
def test_a_kind_stands_for_its_own_type(group: str, kind: str, arm_type: str) -> None:
    assert is_of_type(Resource(f"{group}.azure.com", "v1api20230401", "x", kind), arm_type)


@pytest.mark.parametrize(
    ("group", "kind", "arm_type"),
    [
        ("cache", "Redis", "Microsoft.KeyVault/vaults"),
        ("cache", "Redis", "Microsoft.Cache/redisEnterprise"),
        ("cache", "RedisFirewallRule", "Microsoft.Cache/redis"),
        ("resources", "ResourceGroup", "Microsoft.Cache/redis"),
        ("cache", "Redis", "Microsoft.Resources/resourceGroups"),
        ("sql", "ServersDatabase", "Microsoft.Sql/servers"),
        ("network", "DnsZone", "Microsoft.Network/dnsZones/A"),
        ("cache", "Redis", "Microsoft.Cache"),
    ],
)
def test_a_kind_does_not_stand_for_another_type(group: str, kind: str, arm_type: str) -> None:
    assert not is_of_type(Resource(f"{group}.azure.com", "v1api20230401", "x", kind), arm_type)


def test_an_id_of_another_type_is_held() -> None:
    vault = f"{GROUP}/providers/Microsoft.KeyVault/vaults/one"
    with pytest.raises(PermanentError, match="its ARM id has the type Microsoft"):
        target(made(CACHES, vault), CACHES)
