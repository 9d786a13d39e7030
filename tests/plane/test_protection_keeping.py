"""What protects is kept by a manager: made, put right, made otherwise, taken away; with exactly its rights."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from tests.plane.support.commands import command
from tests.plane.support.controllers import controller_deps, running_components
from tests.plane.support.objects import absent, new_object
from tests.plane.support.protected_objects import MANAGER, ROOM, delete, put_all, until_answered
from tests.plane.support.protection_table import BY_ITSELF
from unwind.api.names import MANAGED_BY_LABEL, MANAGED_BY_UNWIND
from unwind.api.resources import (
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import HOME
from unwind.components import Mode
from unwind.errors import UnwindError
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.metrics import Metrics
from unwind.kube.transport import HttpTransport, ServerAnswer
from unwind.protection import manifests
from unwind.protection.controller import ProtectionController
from unwind.server.registration import RegistrationDeps
from unwind.server.webhook_controller import mended
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster

# With a machine that is busy; and the objects of a whole table are made first.
pytestmark = pytest.mark.timeout(400)

AUTHORITY = "Y2E="
CONFIGURATION = manifests.protection_rules(HOME)
POLICIES, BINDINGS = (
    {item["metadata"]["name"]: item for item in objects} for objects in manifests.policy_objects(HOME)
)


class Old(HttpTransport):
    """An API server that has no policies: it answers in plain text, as for every kind that it does not serve."""

    async def request(self, method: str, target: str, **more: Any) -> ServerAnswer:
        if "/validatingadmissionpolic" in target:
            return ServerAnswer(404, b"404 page not found\n")
        return await super().request(method, target, **more)


def keeper_of(client: Client, *, on: bool = True, mode: Mode = Mode.AUTO) -> ProtectionController:
    """By a clock that stands still: whatever it does, it was told of by an event."""
    metrics = Metrics(CollectorRegistry())
    deps = RegistrationDeps(shared=controller_deps(client, metrics=metrics, clock=StillClock()), namespace=HOME)
    return ProtectionController(deps, on=on, mode=mode)


@asynccontextmanager
async def manager(cluster: LocalCluster, *, old: bool = False) -> AsyncIterator[Client]:
    """The manager's own client, with its rights."""
    connection = cluster.connection(MANAGER, groups=("system:serviceaccounts",))
    transport = Old(connection, user_agent="unwind") if old else None
    async with Client(connection, transport=transport) as client:
        yield client


@asynccontextmanager
async def keeping(
    cluster: LocalCluster, *, on: bool = True, mode: Mode = Mode.AUTO, old: bool = False
) -> AsyncIterator[None]:
    """The keeper alone, as long as the context lasts."""
    async with manager(cluster, old=old) as client, running_components([keeper_of(client, on=on, mode=mode)]):
        yield


async def until(client: Client, resource: Resource, name: str, state: Callable[[Object], bool]) -> Object:
    found = await object_watch.until(client, resource, name, lambda it: it is not None and state(it), "as it should be")
    assert found
    return found


async def until_all_there(client: Client, *, everything: bool = False) -> None:
    for resource, wanted in (
        (VALIDATING_ADMISSION_POLICIES, POLICIES),
        (VALIDATING_ADMISSION_POLICY_BINDINGS, BINDINGS),
    ):
        for name, one in wanted.items():
            await until(client, resource, name, lambda it, one=one: mended(it, one) == {})  # type: ignore[misc]
    await until_asking(client, everything=everything)


async def until_asking(client: Client, *, everything: bool) -> None:
    names = ["labelled", "unlabelled", "any-kind", "labels"] if everything else ["labelled", "unlabelled"]
    asked = [f"{name}.protection.unwind.dev" for name in names]
    await until(
        client,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        CONFIGURATION,
        lambda it: (
            [item["name"] for item in it["webhooks"]] == asked
            and it["webhooks"][0]["failurePolicy"] == "Fail"
            and any("apps" in rule["apiGroups"] for rule in it["webhooks"][0]["rules"]) is everything
        ),
    )


async def test_what_protects_is_there_while_it_is_switched_on_and_is_not_while_it_is_off(
    fresh_member: LocalCluster,
) -> None:
    client = fresh_member.client
    assert (await command(fresh_member, "install", "--url", "https://127.0.0.1:1", "--authorized-groups", "")).code == 0
    rows = [row for row in BY_ITSELF if row.kind.kind in ("Deployment", "ConfigMap", "Namespace")]
    await put_all(client, rows)
    async with keeping(fresh_member):
        await until_all_there(client)
        await until_answered(client, rows)
        await comes_back(client)
        await is_put_right(client)
        await until_answered(client, rows)
    async with keeping(fresh_member, mode=Mode.WEBHOOK):
        await until_asking(client, everything=True)
        for name in BINDINGS:
            await object_watch.until_absent(client, VALIDATING_ADMISSION_POLICY_BINDINGS, name)
        told = await command(fresh_member, "protect", f"ns/{ROOM}")
        assert (
            f"enforced by ValidatingWebhookConfiguration {CONFIGURATION}: enforced by the manager, and none is running"
            in told.out
        )
    # Where there are no policies, it is the same; and whoever insists on them is told so.
    async with keeping(fresh_member):
        await until_all_there(client)
    async with keeping(fresh_member, old=True):
        await until_asking(client, everything=True)
    async with manager(fresh_member, old=True) as its:
        with pytest.RaisesGroup(pytest.RaisesExc(UnwindError, match="does not serve ValidatingAdmissionPolicies")):
            await keeper_of(its, mode=Mode.POLICY).run()
    # The address at which it is called is another one, for which it need not be started again.
    async with keeping(fresh_member, mode=Mode.POLICY):
        await until_all_there(client)
        assert (await command(fresh_member, "install", "--url", "https://127.0.0.1:2")).code == 0
        await until(
            client,
            VALIDATING_WEBHOOK_CONFIGURATIONS,
            CONFIGURATION,
            lambda it: (
                {item["clientConfig"]["url"] for item in it["webhooks"]} == {"https://127.0.0.1:2/admit/deletions"}
            ),
        )
    async with keeping(fresh_member, on=False):
        await object_watch.until_absent(client, VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
        for name in BINDINGS:
            await object_watch.until_absent(client, VALIDATING_ADMISSION_POLICY_BINDINGS, name)
        # As if nothing had been said (row 14).
        await until_answered(client, rows, switched_on=False)

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []
    assert {entry.object_ref.name for entry in asked if entry.verb not in ("list", "get", "watch")} == {
        *POLICIES,
        CONFIGURATION,
    }

    await replaces_policies_of_earlier_builds(fresh_member)

    # Not ours, whatever it is called: it stays, and nothing is written over it.
    name = next(iter(BINDINGS))
    theirs = new_object(
        VALIDATING_ADMISSION_POLICY_BINDINGS, name, spec=BINDINGS[name]["spec"] | {"validationActions": ["Audit"]}
    )
    made = await client.create(VALIDATING_ADMISSION_POLICY_BINDINGS, theirs)
    async with keeping(fresh_member):
        # It is made after all bindings.
        await until_asking(client, everything=False)
    async with keeping(fresh_member, on=False):
        await object_watch.until_absent(client, VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
        for other in set(BINDINGS) - {name}:
            await object_watch.until_absent(client, VALIDATING_ADMISSION_POLICY_BINDINGS, other)
    found = await client.get(VALIDATING_ADMISSION_POLICY_BINDINGS, name)
    assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    await delete(client, VALIDATING_ADMISSION_POLICY_BINDINGS, made)

    async with keeping(fresh_member):
        await until_all_there(client)
    assert (await command(fresh_member, "uninstall", "--yes")).code == 0
    for resource, name in (
        *((VALIDATING_ADMISSION_POLICIES, name) for name in (*POLICIES, *manifests.retired_policies(HOME))),
        *((VALIDATING_ADMISSION_POLICY_BINDINGS, name) for name in BINDINGS),
        (VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION),
    ):
        assert await absent(fresh_member.client, resource, name)


async def replaces_policies_of_earlier_builds(cluster: LocalCluster) -> None:
    """Their bindings are deleted once everything that protects now is there; what is left of them does nothing."""
    client, [name] = cluster.client, sorted(manifests.retired_policies(HOME))
    mark = {"labels": {MANAGED_BY_LABEL: MANAGED_BY_UNWIND}}
    for resource, like in (
        (VALIDATING_ADMISSION_POLICIES, next(iter(POLICIES.values()))),
        (VALIDATING_ADMISSION_POLICY_BINDINGS, next(iter(BINDINGS.values()))),
    ):
        spec = like["spec"] | ({"policyName": name} if "policyName" in like["spec"] else {})
        await client.create(resource, like | {"metadata": {"name": name} | mark, "spec": spec})
    async with keeping(cluster):
        await until_all_there(client)
        await object_watch.until_absent(client, VALIDATING_ADMISSION_POLICY_BINDINGS, name)
    entries = list(cluster.audit.entries(user=MANAGER))
    assert [entry for entry in entries if entry.code == 403] == []
    [deleted] = [entry for entry in entries if entry.verb == "delete" and entry.object_ref.name == name]
    effective = (VALIDATING_ADMISSION_POLICY_BINDINGS.plural, VALIDATING_WEBHOOK_CONFIGURATIONS.plural)
    last = {
        entry.object_ref.name: entry
        for entry in entries
        if entry.verb == "patch" and entry.object_ref.resource in effective
    }
    assert last.keys() == {*BINDINGS, CONFIGURATION}
    assert max(item.stage_timestamp for item in last.values()) <= deleted.request_received_timestamp
    async with keeping(cluster, on=False):
        await object_watch.until_absent(client, VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)


async def comes_back(client: Client) -> None:
    """Whatever of it somebody deletes."""
    for resource, name in (
        (VALIDATING_ADMISSION_POLICIES, manifests.policy_name("replicas", HOME)),
        (VALIDATING_ADMISSION_POLICY_BINDINGS, manifests.policy_name("contents", HOME)),
        (VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION),
    ):
        found = await client.get(resource, name)
        await delete(client, resource, found)
        uid = found["metadata"]["uid"]
        await until(client, resource, name, lambda it, uid=uid: it["metadata"]["uid"] != uid)  # type: ignore[misc]


async def is_put_right(client: Client) -> None:
    """Whatever of it somebody weakens; what others have to say of it stays."""
    name = manifests.policy_name("always-or-nothing", HOME)
    never = {"name": "never", "expression": "false"}
    nowhere = {"namespaceSelector": {"matchLabels": {"no": "where"}}}
    for resource, wanted, patch in (
        (VALIDATING_ADMISSION_POLICIES, POLICIES[name], {"spec": {"matchConditions": [never]}}),
        (VALIDATING_ADMISSION_POLICY_BINDINGS, BINDINGS[name], {"spec": {"matchResources": nowhere}}),
    ):
        assert mended(await client.patch(resource, name, patch), wanted)
        await until(client, resource, name, lambda it, wanted=wanted: mended(it, wanted) == {})  # type: ignore[misc]

    resource = VALIDATING_WEBHOOK_CONFIGURATIONS
    found = await client.get(resource, CONFIGURATION)
    asking = [
        item | {"failurePolicy": "Ignore", "clientConfig": item["clientConfig"] | {"caBundle": AUTHORITY}}
        for item in found["webhooks"]
    ]
    noted = {"metadata": {"annotations": {"example.dev/note": "mine"}}, "webhooks": asking}
    await client.patch(resource, CONFIGURATION, noted)
    await until_asking(client, everything=False)
    found = await client.get(resource, CONFIGURATION)
    assert {item["clientConfig"]["caBundle"] for item in found["webhooks"]} == {AUTHORITY}, "that is others' business"
    assert found["metadata"]["annotations"]["example.dev/note"] == "mine"
