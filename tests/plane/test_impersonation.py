"""The hooks of a release that Unwind uninstalls in place of Flux: the account that Flux impersonates must be allowed to
run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.plane.support.cluster_teardowns import scene
from unwind.api.resources import CLUSTER_ROLES, Resource
from unwind.companions import left_objects
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.impersonation import Account, forbidden_hooks
from unwind.deleters.outcomes import Again
from unwind.helm.release_secrets import ChartManifest
from unwind.members import targets
from unwind.members.member import Member

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

GROUP = CLUSTER_ROLES.group
ROLES = Resource(GROUP, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(GROUP, "v1", "rolebindings", "RoleBinding")
ACCOUNT = Account("tenants", "tenant")


def hook(api_version: str, kind: str, name: str) -> ChartManifest:
    return ChartManifest(api_version=api_version, kind=kind, name=name, hook=True, on_delete=True)


async def test_a_hook_that_the_account_of_flux_may_not_run_holds_the_uninstall(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    client, where = it.member.client, it.on_member
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]}
    maps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    meta = {"name": "tenant", "namespace": where}
    role: Object = {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": meta, "rules": [jobs, maps]}
    await client.create(ROLES, role)
    binding: Object = {
        "apiVersion": ROLES.api_version,
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "namespace": ACCOUNT.namespace, "name": ACCOUNT.name}],
    }
    await client.create(ROLE_BINDINGS, binding)
    job, settings = hook("batch/v1", "Job", "cleanup"), hook("v1", "ConfigMap", "settings")
    unknown, install = hook("example.dev/v1", "Widget", "w"), ChartManifest("v1", "Secret", "before", hook=True)
    async with Member(targets.capi_ref(namespace, it.name, it.uid), client, system_uid=it.system_uid) as member:

        async def allowed() -> bool:
            return not await forbidden_hooks(member, ACCOUNT, [job], where)

        await eventually(allowed, "the authorizer to know the Role")
        asked = await forbidden_hooks(member, ACCOUNT, [job, settings, unknown, install], where)
        assert asked == ["ConfigMap settings", "Widget w"], "it may create the first one, and not delete it"
        name = ReleaseName(where, "db")
        await left_objects._check_hooks(member, name, [job], storage=where, disabled=False, account=ACCOUNT)
        with pytest.raises(Again, match="may not create and delete ConfigMap settings"):
            await left_objects._check_hooks(member, name, [settings], storage=where, disabled=False, account=ACCOUNT)
