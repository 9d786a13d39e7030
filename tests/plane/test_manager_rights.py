"""The identity that managers have in tests: the ServiceAccount, with the rights that `unwind install` renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.api.names import MANAGER_USER_AGENT
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.rights import Right
from unwind.kube.errors import ApiError
from unwind.testing.managers import expecting_refusals, granting, manager_client, manager_connection, manager_user

if TYPE_CHECKING:
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


def config_map(namespace: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": namespace}}


async def test_a_manager_has_the_installed_rights_and_no_others(plane: Plane, namespace: str) -> None:
    admin, user = plane.management.client, manager_user(namespace)
    async with manager_client(admin, namespace) as client:
        await client.get(NAMESPACES, "kube-system")
        with expecting_refusals("configmaps"), pytest.raises(ApiError, match="cannot create resource"):
            await client.create(CONFIG_MAPS, config_map(namespace))
    entries = list(plane.management.audit.entries(user=user))
    [refused] = [entry for entry in entries if entry.unauthorized]
    assert (refused.code, refused.user_agent) == (403, MANAGER_USER_AGENT)
    assert not any("system:masters" in entry.user.groups for entry in entries)


async def test_a_refusal_by_admission_is_told_from_one_by_rbac(plane: Plane, namespace: str) -> None:
    admin, user = plane.management.client, manager_user(namespace)
    rights = Right("", ("configmaps",), ("create",))
    async with granting(admin, f"refused-{namespace}", rights), manager_client(admin, namespace) as client:
        # A namespace that is being deleted takes nothing new: admission says so, with the code of RBAC.
        await _delete_namespace(admin, f"{namespace}-gone", finalizer="example.dev/hold")
        with pytest.raises(ApiError, match="because it is being terminated"):
            await client.create(CONFIG_MAPS, config_map(f"{namespace}-gone"))
    [refused] = [entry for entry in plane.management.audit.entries(user=user) if entry.code == 403]
    assert not refused.unauthorized
    await admin.patch(NAMESPACES, f"{namespace}-gone", {"metadata": {"finalizers": None}})


async def _delete_namespace(admin: Client, name: str, *, finalizer: str) -> None:
    metadata = {"name": name, "finalizers": [finalizer]}
    made = await admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    await admin.delete(NAMESPACES, name, uid=made["metadata"]["uid"])


async def test_more_rights_are_granted_by_a_labelled_role(plane: Plane, namespace: str) -> None:
    admin = plane.management.client
    rights = Right("", ("configmaps",), ("create",))
    async with granting(admin, f"more-{namespace}", rights), manager_client(admin, namespace) as client:
        await client.create(CONFIG_MAPS, config_map(namespace))


async def test_a_client_that_is_not_an_administrators_is_used_as_it_is(plane: Plane, namespace: str) -> None:
    connection = await manager_connection(plane.management.client, namespace)
    assert connection.certificate is None
    async with (
        manager_client(plane.management.client, namespace) as first,
        manager_client(first, "another") as second,
    ):
        assert second is first
