"""Each row of the table of threats is carried out, with the rights that it names, against a running manager."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import cluster_teardowns, karmada_members, profiles, requested_deletions, threats, unjoins
from tests.plane.support.objects import delete, new_object, until_refused
from tests.plane.support.threat_attempts import Stage
from tests.plane.support.threats import THREATS, Threat
from unwind.api.karmada import WORKS
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
)
from unwind.api.rights import HOME, Right, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.clock import SYSTEM
from unwind.install.contributions import REGISTER
from unwind.install.install import install
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.kubeconfig import Token
from unwind.kube.object_watch import until_absent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

TRIED = [threat for threat in THREATS if threat.attempt]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(plane: Plane) -> None:
    """Unwind with all of its policies, and each of them in effect."""
    client = plane.management.client
    await karmada_members.install(client)
    await install(client, Setting(), accept_shadowing=True)
    policies = {
        manifest["metadata"]["name"]
        for contribution in REGISTER
        for manifest in contribution.manifests(Setting())
        if manifest["kind"] == VALIDATING_ADMISSION_POLICIES.kind
    }
    for name in sorted(policies):
        found = await object_watch.until(client, VALIDATING_ADMISSION_POLICIES, name, _type_checked, "type-checked")
        assert found
        warnings = (found["status"].get("typeChecking") or {}).get("expressionWarnings")
        assert not warnings or "unwind" not in str(warnings), warnings
    # The API server reads all policies together, once a second: where the last of these is in effect, all are.
    await until_refused(
        lambda: delete(client, NAMESPACES, HOME, dry_run=True), "ValidatingAdmissionPolicy 'unwind-kinds"
    )


def _type_checked(policy: Object | None) -> bool:
    status = (policy or {}).get("status") or {}
    return policy is not None and status.get("observedGeneration") == policy["metadata"]["generation"]


@asynccontextmanager
async def tenant(client: Client, namespace: str, threat: Threat) -> AsyncIterator[tuple[Client, str]]:
    """A ServiceAccount in a namespace that has the rights of a row, and no others."""
    name = f"tenant-{namespace}"
    account = {"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": namespace}
    await client.create(SERVICE_ACCOUNTS, new_object(SERVICE_ACCOUNTS, name, namespace))
    for role, binding, where, rights in (
        (ROLES, ROLE_BINDINGS, namespace, threat.rights),
        (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, "", threat.everywhere),
    ):
        if rights:
            rules = [right.rule() for right in rights]
            reference = {"apiGroup": role.group, "kind": role.kind, "name": name}
            await client.create(role, new_object(role, name, where, rules=rules))
            await client.create(binding, new_object(binding, name, where, roleRef=reference, subjects=[account]))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    token = await client.post(SERVICE_ACCOUNTS, name, "token", request, namespace=namespace)
    credential = Token(token["status"]["token"])
    connection = msgspec.structs.replace(client.connection, certificate=None, key=None, credential=credential)
    async with Client(connection, user_agent="tenant") as own:
        await _in_effect(own, namespace, (*threat.rights, *threat.everywhere))
        yield own, f"system:serviceaccount:{namespace}:{name}"
    for kind in (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES) if threat.everywhere else ():
        found = await client.get(kind, name)
        await client.delete(kind, name, uid=found["metadata"]["uid"])


async def _in_effect(client: Client, namespace: str, rights: tuple[Right, ...]) -> None:
    """Wait until RBAC grants what was written a moment ago."""
    for right in rights:
        await eventually(partial(requested_deletions.allowed, client, right.rule(), namespace), f"the right {right}")


@pytest.mark.parametrize("threat", TRIED, ids=[f"{item.resource}: {item.must_not}" for item in TRIED])
async def test_a_tenant_gets_no_more_than_their_rights(
    plane: Plane, namespace: str, installed: None, threat: Threat
) -> None:
    home = f"{namespace}-tenant"
    await plane.management.create_namespace(home)
    assert threat.attempt
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(profiles.playing(plane, namespace))
        await victim.register()
        own, user = await stack.enter_async_context(tenant(victim.client, home, threat))
        await stack.enter_async_context(cluster_teardowns.all_controllers(victim.client, HOME, clock=SYSTEM))
        await threat.attempt(Stage(victim, own, user, home))


async def test_the_garbage_collector_may_take_owners_off_a_summary_and_the_manager_may_write_it(
    plane: Plane, namespace: str, installed: None
) -> None:
    """Orphaned by the deletion of its profile, and then still removed by its Inventory."""
    async with (
        profiles.playing(plane, namespace) as scene,
        cluster_teardowns.all_controllers(scene.client, HOME, clock=SYSTEM),
    ):
        await scene.register()
        await scene.source("web", profiles.config_map(namespace, "a"))
        await scene.profile("web", "web")
        await scene.until_provisioned("web")
        name, summary = scene.called("web"), await scene.summary("web")
        found = await scene.client.get(CLUSTER_PROFILES, name)
        await scene.client.delete(CLUSTER_PROFILES, name, uid=found["metadata"]["uid"], propagation="Orphan")
        await scene.until_profile_gone("web")
        # The profile does not wait for a summary that it does not own any more.
        await until_absent(scene.client, CLUSTER_SUMMARIES, summary.metadata.name, namespace=namespace)
        assert await scene.on_member() == {}


async def test_a_work_outside_of_an_execution_namespace_puts_nothing_on_a_member(
    plane: Plane, namespace: str, installed: None
) -> None:
    home = f"{namespace}-tenant"
    await plane.management.create_namespace(home)
    rights = Threat(threats.named(WORKS), "", rights=(Right(WORKS.group, (WORKS.plural,), ("create", "get", "patch")),))
    async with (
        unjoins.scene(plane, namespace) as scene,
        tenant(scene.client, home, rights) as (own, _),
        unjoins.controllers(scene.client, namespace, clock=SYSTEM),
    ):
        manifests = [profiles.config_map(namespace, "evil")]
        work = new_object(WORKS, "evil", home, spec={"workload": {"manifests": manifests}})
        await own.create(WORKS, work)
        await scene.put("good")
        await scene.deployed("good")  # it came later, and all are looked at in turn
        assert "evil" not in await scene.on_member()
        found = await scene.client.get(WORKS, "evil", namespace=home)
        assert not found["metadata"].get("finalizers")
