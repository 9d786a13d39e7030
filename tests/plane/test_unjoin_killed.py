"""The manager killed at every write while it unjoins a member: nothing is lost, left, or touched besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plane.support.killed_managers import Killer, Managers, killed_user
from tests.plane.support.unjoins import UnjoinScene, controllers, scene
from unwind.api.karmada import CLUSTERS, WORKS, RemoveStrategy
from unwind.api.names import KARMADA_CLUSTER_NAMESPACE, OWNER_LABEL
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.unwind import Phase
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


async def is_over(it: UnjoinScene) -> bool:
    """Whether nothing is left on this side that stood for the member."""
    for kind, name, namespace in (
        (CLUSTERS, it.name, None),
        (NAMESPACES, it.execution, None),
        (SECRETS, it.name, KARMADA_CLUSTER_NAMESPACE),
    ):
        try:
            await it.client.get(kind, name, namespace=namespace)
        except NotFoundError:
            continue
        return False
    return True


@pytest.mark.parametrize("strategy", list(RemoveStrategy))
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_of_an_unjoin_brings_it_to_its_end(
    plane: Plane, namespace: str, tmp_path: Path, before: bool, strategy: RemoveStrategy
) -> None:
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    killer = Killer(managers, before=before)
    async with scene(plane, namespace, remove_strategy=strategy) as it:
        async with controllers(it.client, namespace):
            await it.put("base", objects=1)
            await it.put("top", objects=1, depends_on=("base",))
            await it.deployed("base", "top")
        uids = {one["metadata"]["uid"]: name for name, one in (await it.on_member()).items()}
        async with killer.intercepted(it.client, it.cluster) as way:
            await it.lead_to(way.server, authority=way.authority)
            await it.delete()
            await managers.until(lambda: is_over(it), it.client)
        killer.report()
        teardown = await it.record()
        assert teardown.phase is Phase.COMPLETE
        # Each of ours, once, by its uid; and nothing else.
        sent = {
            deletion.uid: deletion.object_ref.name
            for deletion in it.cluster.audit.deletions()
            if deletion.username == killed_user(namespace)
        }
        there = await it.on_member()
        if strategy is RemoveStrategy.REQUIRED:
            assert sent == uids
            assert there == {}
            assert teardown.status.left == 0
        else:
            assert sent == {}
            assert set(there) == set(uids.values()) == set(await it.ledger())
            assert not any(OWNER_LABEL in (item["metadata"].get("labels") or {}) for item in there.values())
        assert await it.client.list(WORKS, namespace=it.execution) == []
        kinds = {(method, path.split("/")[-2 if path.endswith("status") else -1]) for method, path, _ in killer.killed}
        # It was there at all that matters: the plan, the seal, each Work, the namespace, the Cluster.
        assert {("POST", "teardowns"), ("DELETE", "base"), ("DELETE", "top"), ("DELETE", it.execution)} <= kinds
        assert ("PATCH", it.name) in kinds
        assert any("spec.sealedFor" in fields for _, _, fields in killer.killed)
