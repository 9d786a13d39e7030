"""`unwind install` over every release that is kept as test data: each is upgraded to this version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.plane.support.commands import command
from tests.plane.support.extension_registration import create_cluster, create_teardown, serve
from tests.plane.support.objects import absent
from tests.plane.test_chart import CHART
from tests.plane.test_chart_lifecycle import helm
from unwind.api.features import ALL, UNRECORDED, written
from unwind.api.names import INSTALL_FIELD_MANAGER
from unwind.api.resources import CLUSTER_ROLES, CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SERVICE_ACCOUNTS
from unwind.api.rights import HOME, Setting
from unwind.api.unwind import TEARDOWNS
from unwind.install.install import established
from unwind.install.manifests import resource_of
from unwind.install.obsolete_objects import retired_rights
from unwind.kube.object_watch import until
from unwind.server.manager_names import REGISTRATION

if TYPE_CHECKING:
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

RELEASES = sorted((Path(__file__).parents[1] / "data" / "releases").iterdir())


async def _installed(release: Path, client: Client) -> None:
    """Apply the objects of a release, as its `unwind install` did."""
    rendered: list[Object] = list(yaml.load_all((release / "install.yaml").read_text(), yaml.CSafeLoader))
    # Without Cluster API, as `unwind install` does it: the ExtensionConfig is left out.
    objects = [obj for obj in rendered if obj["kind"] != "ExtensionConfig"]
    for manifest in objects:
        resource, name = resource_of(manifest), manifest["metadata"]["name"]
        await client.apply(resource, manifest, field_manager=INSTALL_FIELD_MANAGER)
        if resource == CUSTOM_RESOURCE_DEFINITIONS:
            await until(client, resource, name, lambda it: it is not None and established(it), "established")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
async def test_a_release_is_taken_over_by_the_chart(release: Path, plane: Plane, fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    await serve(plane, client)
    await _installed(release, client)
    # Of a teardown that is under way: the chart must not touch it.
    teardown = await create_teardown(client, await create_cluster(client, "prod-7"), "Enforce")
    before = await client.get(TEARDOWNS, teardown)
    every = f"features={{{','.join(sorted(ALL))}}}"
    options = ("--take-ownership", "--set", "replicas=0", "--set", every)
    refused = await helm(fresh_member, "install", "unwind", str(CHART), "--take-ownership", fails=True)
    assert "cannot remove feature addons with Helm" in refused, "its hooks and policies would stay"
    await helm(fresh_member, "install", "unwind", str(CHART), *options)
    old = [(resource_of(manifest), manifest["metadata"]["name"]) for manifest in retired_rights(Setting())]
    rules = [(await client.get(*it)).get("rules") for it in old if it[0] == CLUSTER_ROLES]
    assert not any(rules), "the roles of the features have them"
    await helm(fresh_member, "upgrade", "unwind", str(CHART), *options)
    assert all([await absent(client, *it) for it in old])
    assert (await client.get(TEARDOWNS, teardown))["metadata"]["uid"] == before["metadata"]["uid"]
    account = await client.get(SERVICE_ACCOUNTS, "unwind", namespace=HOME)
    assert account["metadata"]["annotations"]["meta.helm.sh/release-name"] == "unwind"


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
async def test_a_release_is_upgraded_by_install(release: Path, fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    await _installed(release, client)
    first = await command(fresh_member, "install", features="")
    assert first.code == 0, first.err
    registration = await client.get(CONFIG_MAPS, REGISTRATION, namespace=HOME)
    assert registration["data"]["features"] == written(UNRECORDED), "what was installed stays"
    for manifest in retired_rights(Setting()):
        assert await absent(client, resource_of(manifest), manifest["metadata"]["name"])
    second = await command(fresh_member, "install", features="")
    assert set(second.counts) == {"unchanged", "left out"}, "one run upgrades everything"
