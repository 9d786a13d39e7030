"""`unwind install` over every release that is kept as test data: each is upgraded to this version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.plane.support.commands import command
from unwind.api.names import INSTALL_FIELD_MANAGER
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.install.install import established
from unwind.install.manifests import resource_of
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

RELEASES = sorted((Path(__file__).parents[1] / "data" / "releases").iterdir())


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
async def test_a_release_is_upgraded_by_install(release: Path, fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    rendered: list[Object] = list(yaml.load_all((release / "install.yaml").read_text(), yaml.CSafeLoader))
    # Without Cluster API, as `unwind install` does it: the ExtensionConfig is left out.
    objects = [obj for obj in rendered if obj["kind"] != "ExtensionConfig"]
    for manifest in objects:
        resource, name = resource_of(manifest), manifest["metadata"]["name"]
        await client.apply(resource, manifest, field_manager=INSTALL_FIELD_MANAGER)
        if resource == CUSTOM_RESOURCE_DEFINITIONS:
            await until(client, resource, name, lambda it: it is not None and established(it), "established")

    first = await command(fresh_member, "install")
    assert first.code == 0, first.err
    second = await command(fresh_member, "install")
    assert set(second.counts) == {"unchanged", "left out"}, "one run upgrades everything"
