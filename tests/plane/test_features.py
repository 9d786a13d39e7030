"""Features by name: what is installed with them, what kubectl's names mean, and how a feature is removed."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING

from tests.eventually import eventually
from tests.plane.support import karmada_members
from tests.plane.support.commands import command, kubectl
from tests.plane.support.manager_process import running
from tests.plane.support.objects import absent, new_object
from unwind.api import capi, karmada, sveltos
from unwind.api.features import Feature, written
from unwind.api.names import Finalizer
from unwind.api.resources import (
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PODS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.install.install import established
from unwind.kube import object_watch
from unwind.testing import managers

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.kube.client import Client
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

HOME = "unwind-system"
DEFAULT = written({Feature.CAPI, Feature.PROTECTION})


async def with_cluster_api(plane: Plane, client: Client) -> list[list[str]]:
    """Create the CRDs of Cluster API on another cluster; returns every name that kubectl accepts for its kinds, in
    lists with at most one name of each kind."""
    names: list[list[str]] = []
    for crd in await plane.management.client.list(CUSTOM_RESOURCE_DEFINITIONS):
        spec = crd["spec"]
        if not spec["group"].endswith("cluster.x-k8s.io"):
            continue
        # Without its manager, nothing answers the conversion webhook.
        spec = {**spec, "conversion": {"strategy": "None"}}
        name = crd["metadata"]["name"]
        annotations = {key: value for key, value in crd["metadata"].get("annotations", {}).items() if "approved" in key}
        made = new_object(CUSTOM_RESOURCE_DEFINITIONS, name, spec=spec)
        made["metadata"]["annotations"] = annotations
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, made)
        await object_watch.until(
            client, CUSTOM_RESOURCE_DEFINITIONS, name, lambda it: it is not None and established(it), "established"
        )
        called = spec["names"]
        names.append([called["plural"], called["singular"], *called.get("shortNames", ())])
    return [[name for name in some if name] for some in zip_longest(*names)]


async def meanings(cluster: LocalCluster, names: list[list[str]], cache: Path) -> list[str]:
    """The resources that kubectl asks for, in the order of the names."""
    found: list[str] = []
    for some in names:
        # Its cache of the discovery would hide what has just been installed.
        done = await kubectl(cluster.kubeconfig, "get", "-A", ",".join(some), "-v=6", f"--cache-dir={cache}")
        assert done.returncode == 0, done.stderr
        asked = re.findall(r"https://[^/]+/apis/([^/]+)/[^/]+/([a-z]+)\?limit", done.stderr)
        assert len(asked) == len(some), done.stderr
        found += [f"{resource}.{group}" for group, resource in asked]
    return found


async def served(client: Client) -> set[str]:
    found = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
    return {crd["spec"]["group"] for crd in found if not crd["spec"]["group"].endswith("cluster.x-k8s.io")}


async def roles(client: Client) -> set[str]:
    names = {role["metadata"]["name"] for role in await client.list(CLUSTER_ROLES)}
    return {name.removesuffix(f":{HOME}") for name in names if name.endswith(f":{HOME}")}


async def recorded(client: Client) -> str:
    found = await client.get(CONFIG_MAPS, "unwind-registration", namespace=HOME)
    features: str = found["data"]["features"]
    return features


async def test_the_names_of_cluster_apis_kinds_mean_what_they_meant_unless_shadowing_is_accepted(
    plane: Plane, fresh_member: LocalCluster, tmp_path: Path
) -> None:
    client = fresh_member.client
    names = await with_cluster_api(plane, client)
    assert {"clusters", "cluster", "cl", "md"} <= {name for some in names for name in some}
    before = await meanings(fresh_member, names, tmp_path / "before")
    assert "clusters.cluster.x-k8s.io" in before

    installed = await command(fresh_member, "install", features="")
    assert installed.code == 0, installed.err
    assert await recorded(client) == DEFAULT
    assert await served(client) == {"unwind.dev"}
    assert await roles(client) == {"unwind", "unwind-granted", "unwind-capi", "unwind-protection"}
    assert await meanings(fresh_member, names, tmp_path / "default") == before

    with_karmada = f"{DEFAULT},{Feature.KARMADA}"
    refusal = (await command(fresh_member, "install", "--features", with_karmada, features="")).refusal
    assert "`kubectl get clusters` and `kubectl delete cluster` would then mean clusters.cluster.karmada.io" in refusal
    assert "use --accept-shadowing and always write clusters.cluster.x-k8s.io" in refusal
    assert await served(client) == {"unwind.dev"}
    assert await recorded(client) == DEFAULT, "nothing was changed"

    accepted = await command(fresh_member, "install", "--features", with_karmada, "--accept-shadowing", features="")
    assert accepted.code == 0, accepted.err
    shadowed = await meanings(fresh_member, names, tmp_path / "karmada")
    assert {new for old, new in zip(before, shadowed, strict=True) if old != new} == {"clusters.cluster.karmada.io"}
    again = await command(fresh_member, "install", features="")
    assert set(again.counts) == {"unchanged"}, "it is asked for once"


async def test_a_feature_is_removed_when_nothing_is_held_any_more_and_its_kinds_stay(
    fresh_member: LocalCluster,
) -> None:
    client = fresh_member.client
    assert (await command(fresh_member, "install")).code == 0
    assert (await roles(client)) == {"unwind", "unwind-granted", *(f"unwind-{feature}" for feature in Feature)}
    profile = new_object(sveltos.CLUSTER_PROFILES, "held", spec={})
    profile["metadata"]["finalizers"] = [Finalizer.PROFILE.value]
    await client.create(sveltos.CLUSTER_PROFILES, profile)
    member = new_object(karmada.CLUSTERS, "member", spec={"syncMode": "Push"})
    await client.create(karmada.CLUSTERS, member)

    refusal = (await command(fresh_member, "install", "--features", DEFAULT)).refusal
    assert "cannot remove feature addons,caaph,drain,external,flux,gates,helm,karmada" in refusal
    assert "Unwind still holds ClusterProfile held" in refusal
    assert await recorded(client) == written(Feature), "nothing was changed"

    await client.patch(sveltos.CLUSTER_PROFILES, "held", {"metadata": {"finalizers": None}})
    done = await command(fresh_member, "install", "--features", DEFAULT)
    assert done.counts["removed"] > 0
    assert "restart the manager" in done.err
    assert await roles(client) == {"unwind", "unwind-granted", "unwind-capi", "unwind-protection"}
    assert await absent(client, VALIDATING_WEBHOOK_CONFIGURATIONS, f"unwind-profiles.{HOME}")
    assert {"config.projectsveltos.io", "cluster.karmada.io"} <= await served(client), "their objects are user data"
    assert not await absent(client, sveltos.CLUSTER_PROFILES, "held")
    assert set((await command(fresh_member, "install", features="")).counts) == {"unchanged", "left out"}


MISSING = {
    Feature.ADDONS: sveltos.CLUSTER_PROFILES,
    Feature.CAPI: capi.EXTENSION_CONFIGS,
    Feature.KARMADA: karmada.WORKS,
    Feature.PROTECTION: PODS,
}
"""One resource of each feature that has informers from the start."""


async def test_a_missing_right_of_a_feature_is_named_in_the_log(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    await karmada_members.install(client)
    kubeconfig = await managers.manager_kubeconfig(plane.management, namespace)
    plurals = {resource.plural for resource in MISSING.values()}
    for role in await client.list(CLUSTER_ROLES):
        if role["metadata"]["name"].endswith(f":{namespace}") and role.get("rules"):
            rules = [
                {**rule, "resources": left}
                for rule in role["rules"]
                if (left := [name for name in rule["resources"] if name not in {*plurals, "*"}])
            ]
            await client.patch(CLUSTER_ROLES, role["metadata"]["name"], {"rules": rules})
    gates = "ResourcesDeletionProtection=true"
    wanted = [
        f'cannot list resource "{resource.plural}" in API group "{resource.group}" at the cluster scope'
        for resource in MISSING.values()
    ]
    managers.expect_refusals_of(namespace, *plurals)
    async with running(plane.management, namespace, "--feature-gates", gates, kubeconfig=kubeconfig) as manager:

        def named() -> bool:
            told = [entry.get("why", "") for entry in manager.logged]
            return all(any(text in why for why in told) for text in wanted)

        await eventually(named, "every missing right in the log")
