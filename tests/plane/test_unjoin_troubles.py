"""Members unjoined on bad days: nothing is taken for gone that is not, nothing goes that is not ours, and what is
waited for is named."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.plane.support import karmada_members
from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD
from tests.plane.support.karmada_members import joined
from tests.plane.support.manager_process import running
from tests.plane.support.profiles import config_map
from tests.plane.support.unjoins import behind_proxy, controllers, scene
from unwind.api import names
from unwind.api.karmada import CLUSTERS, WORKS, RemoveStrategy, Work
from unwind.api.meta import find
from unwind.api.names import DELETE_PROTECTION_LABEL, KARMADA_CLUSTER_NAMESPACE, REMOVE_STRATEGY_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from unwind.api.rights import HOME, Setting
from unwind.api.unwind import Phase
from unwind.clock import SYSTEM
from unwind.install.install import install
from unwind.karmada import join_objects, tokens
from unwind.kube.client import Client
from unwind.kube.object_watch import until_absent
from unwind.local.cluster import ALL_RIGHTS
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

# Among the longest: they run with the soak tests.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(170)]

REQUIRED = RemoveStrategy.REQUIRED


async def test_what_others_made_anew_in_our_place_survives(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it:
        async with controllers(it.client, namespace):
            await it.put("web")
            await it.deployed("web")
        # While nobody looks.
        ours = (await it.on_member())["web-0"]["metadata"]
        member = it.cluster.client
        await member.delete(CONFIG_MAPS, "web-0", uid=ours["uid"], namespace=namespace)
        theirs = await member.create(CONFIG_MAPS, config_map(namespace, "web-0", made="by somebody"))
        await it.delete()
        async with controllers(it.client, namespace):
            assert (await it.gone()).phase is Phase.COMPLETE
        assert {item["metadata"]["uid"] for item in (await it.on_member()).values()} == {theirs["metadata"]["uid"]}


async def test_a_member_that_is_cut_off_in_the_middle_is_waited_for_and_said_to_be(
    plane: Plane, namespace: str
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it:
        async with behind_proxy(it, clock=SYSTEM) as proxy:
            await it.block("web-1")
            await it.delete()
            await it.says("UnjoinFailed", "web-1", HOLD)
            proxy.close()
            said = await it.says("UnjoinFailed", "Work web", f"Cluster {it.name} does not answer", "since 20")
            assert said.reason == "Unreachable"
            await it.unblock("web-1")
            proxy.reopen()
            assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}


async def test_needless_waits_for_no_member_that_does_not_answer(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace) as it:
        async with behind_proxy(it, clock=SYSTEM) as proxy:
            proxy.close()
            await it.delete()
            assert (await it.gone()).phase is Phase.COMPLETE
        notes = await it.ledger()
        assert {name: note.reason for name, note in notes.items()} == {"web-0": "KeptByPolicy", "web-1": "KeptByPolicy"}
        assert all("does not answer" in note.message for note in notes.values())
        assert it.deleted() == []


async def test_nothing_is_touched_on_another_cluster_behind_the_same_address(
    plane: Plane, namespace: str, fresh_member: LocalCluster
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it:
        async with controllers(it.client, namespace):
            await it.put("web")
            await it.deployed("web")
        await fresh_member.create_namespace(namespace)
        for name, one in (await it.on_member()).items():
            twin = config_map(namespace, name)
            twin["metadata"]["labels"] = one["metadata"]["labels"]
            await fresh_member.client.create(CONFIG_MAPS, twin)
        right = (await it.get()).spec.api_endpoint
        secret = await it.client.get(SECRETS, it.name, namespace=KARMADA_CLUSTER_NAMESPACE)
        async with joined(it.client, fresh_member) as other:
            way = await it.client.get(SECRETS, other.name, namespace=KARMADA_CLUSTER_NAMESPACE)
            await it.client.patch(SECRETS, it.name, {"data": way["data"]}, namespace=KARMADA_CLUSTER_NAMESPACE)
            await it.lead_to(fresh_member.server)
            async with controllers(it.client, namespace, clock=SYSTEM):
                await it.delete()
                await it.says("UnjoinFailed", "Work web", "another cluster answers", "since 20")
                assert fresh_member.audit.deletions(resource="configmaps") == []
                assert it.deleted() == []
                await it.client.patch(SECRETS, it.name, {"data": secret["data"]}, namespace=KARMADA_CLUSTER_NAMESPACE)
                await it.lead_to(right)
                assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}
        assert fresh_member.audit.deletions(resource="configmaps") == []


async def test_credentials_that_are_revoked_in_the_middle_hold_it_until_there_are_others(
    plane: Plane, namespace: str
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it:
        member, account = it.cluster.client, join_objects.account(it.name)
        async with controllers(it.client, namespace, clock=SYSTEM):
            await it.put("below")
            await it.put("web", depends_on=("below",))
            await it.deployed("below", "web")
            await it.block("web-1")
            await it.delete()
            await it.says("UnjoinFailed", "web-1", HOLD)
            # A token is of one account, and not of another that has its name.
            found = await member.get(SERVICE_ACCOUNTS, account, namespace=KARMADA_CLUSTER_NAMESPACE)
            await member.delete(
                SERVICE_ACCOUNTS, account, uid=found["metadata"]["uid"], namespace=KARMADA_CLUSTER_NAMESPACE
            )
            await it.says("UnjoinFailed", "Work web", "refused access", "Unauthorized", "since 20")
            await it.unblock("web-1")
            await it.says("UnjoinFailed", "Work below", "refused access", "Unauthorized", "since 20")
            assert set(await it.on_member()) == {"below-0", "below-1"}
            again = {key: found[key] for key in ("apiVersion", "kind")}
            head = {"name": account, "namespace": KARMADA_CLUSTER_NAMESPACE, "labels": found["metadata"]["labels"]}
            await member.create(SERVICE_ACCOUNTS, again | {"metadata": head})
            token = await tokens.request_token(member, account=account, namespace=KARMADA_CLUSTER_NAMESPACE)
            await it.lead_to(it.cluster.server, token=token)
            assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}


async def test_an_execution_namespace_that_cannot_go_is_named_and_waited_for(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        work = await it.client.get(WORKS, "web", namespace=it.execution, type=Work)
        held = {"metadata": {"finalizers": [*work.metadata.finalizers, HOLD]}}
        await it.client.patch(WORKS, "web", held, namespace=it.execution)
        await it.delete()
        await it.says("UnjoinFailed", f"Namespace {it.execution}", HOLD)
        assert await it.on_member() == {}
        await it.client.patch(WORKS, "web", {"metadata": {"finalizers": None}}, namespace=it.execution)
        assert (await it.gone()).phase is Phase.COMPLETE
        await it.nothing_left()


async def test_an_execution_namespace_that_contains_a_protected_object_of_others_holds_the_member(
    plane: Plane, namespace: str
) -> None:
    async with (
        scene(plane, namespace, remove_strategy=REQUIRED) as it,
        controllers(it.client, namespace, clock=(clock := StillClock())),
    ):
        await it.put("web")
        await it.deployed("web")
        labels = {DELETE_PROTECTION_LABEL: "Always"}
        metadata = {"name": "theirs", "namespace": it.execution, "labels": labels}
        await it.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        await it.delete()
        await it.says("UnjoinFailed", f"Namespace {it.execution}", f"ConfigMap {it.execution}/theirs")
        assert await it.on_member() == {}
        there = await it.client.get(NAMESPACES, it.execution)
        assert "deletionTimestamp" not in there["metadata"]
        free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
        await it.client.patch(CONFIG_MAPS, "theirs", free, namespace=it.execution)

        async def gone() -> bool:
            clock.advance(31)  # nothing reports a change of what a Namespace contains
            return (await it.client.sighting(CLUSTERS, it.name, uid=it.uid)).absent

        await eventually(gone, "the member is gone")
        assert (await it.record()).phase is Phase.COMPLETE
        await it.nothing_left()


async def test_a_cluster_whose_finalizer_somebody_took_off_leaves_a_ledger_and_holds_nothing(
    plane: Plane, namespace: str
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.delete_blocked()
        await it.change({"metadata": {"finalizers": None}})
        await until_absent(it.client, CLUSTERS, it.name)
        teardown = await it.teardown(lambda one: one.finished, "finished")
        assert teardown.phase is Phase.TARGET_GONE
        assert {name: note.reason for name, note in (await it.ledger()).items()} == {"web-1": "TargetGone"}
        await it.until_work_let_go("web")


async def test_a_cluster_that_went_while_nobody_looked_leaves_a_ledger_and_holds_nothing(
    plane: Plane, namespace: str
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it:
        async with controllers(it.client, namespace):
            await it.put("web")
            await it.deployed("web")
        await it.delete()
        await it.change({"metadata": {"finalizers": None}})
        await until_absent(it.client, CLUSTERS, it.name)
        async with controllers(it.client, namespace):
            assert (await it.teardown(lambda one: one.finished, "finished")).phase is Phase.TARGET_GONE
            await until_absent(it.client, SECRETS, it.name, namespace=KARMADA_CLUSTER_NAMESPACE)
            await it.until_work_let_go("web")
        assert set(await it.on_member()) == {"web-0", "web-1"}
        assert {note.reason for note in (await it.ledger()).values()} == {"TargetGone"}


async def test_the_rights_of_the_manager_are_enough(plane: Plane, fresh_member: LocalCluster) -> None:
    await install(fresh_member.client, Setting())
    await karmada_members.install(fresh_member.client)  # which returns when all kinds are served
    way = fresh_member.connection(f"system:serviceaccount:{HOME}:unwind", groups=("system:serviceaccounts",))
    async with (
        scene(plane, HOME, home=fresh_member.client, remove_strategy=REQUIRED) as it,
        Client(way) as manager,
        controllers(manager, HOME),
    ):
        await it.put("web")
        await it.deployed("web")
        await it.delete()
        assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}
        await it.nothing_left()
        assert await it.accounts() == []


async def test_who_lets_a_member_go_or_deletes_it_is_noted_when_it_is_said(fresh_member: LocalCluster) -> None:
    assert (await command(fresh_member, "install")).code == 0
    manager = fresh_member.write_kubeconfig(f"system:serviceaccount:{HOME}:unwind", groups=("system:serviceaccounts",))
    body = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": "m", "finalizers": [HOLD]},
        "spec": {"syncMode": "Pull", "removeStrategy": "Required"},
    }
    async with (
        running(fresh_member, HOME, "--roles", "serving", kubeconfig=manager) as process,
        Client(fresh_member.connection("jane", groups=ALL_RIGHTS)) as jane,
    ):
        await process.until_listening("https")
        assert (await command(fresh_member, "install", "--url", f"https://{process.addresses['https']}")).code == 0
        made = await jane.create(CLUSTERS, body)
        noted: dict[str, str] = {}
        async with asyncio.timeout(60):
            # It takes the API server a moment to know whom to ask, and by which authority.
            while names.REMOVE_STRATEGY_BY_ANNOTATION not in noted:
                await jane.patch(CLUSTERS, "m", {"spec": {"removeStrategy": "Needless"}})
                now = await jane.patch(CLUSTERS, "m", {"spec": {"removeStrategy": "Required"}})
                noted = now["metadata"].get("annotations") or {}
        assert noted[names.REMOVE_STRATEGY_BY_ANNOTATION] == "Required by jane"
        await jane.patch(CLUSTERS, "m", {"spec": {"removeStrategy": "Needless"}})
        forged = {names.REMOVE_STRATEGY_BY_ANNOTATION: "Needless by joe", names.FORCE_RELEASE_ANNOTATION: "now"}
        await jane.patch(CLUSTERS, "m", {"metadata": {"annotations": forged}})
        await jane.delete(CLUSTERS, "m", uid=made["metadata"]["uid"])
        told = (await jane.get(CLUSTERS, "m"))["metadata"]["annotations"]
        assert told[names.REMOVE_STRATEGY_BY_ANNOTATION] == "Needless by jane"
        assert told[names.FORCE_RELEASE_BY_ANNOTATION] == "jane"
        assert told[names.DELETION_REQUESTED_BY_ANNOTATION] == "jane"
        await jane.patch(CLUSTERS, "m", {"metadata": {"finalizers": None}})


async def test_where_the_field_is_not_served_the_annotation_counts_and_an_unknown_word_holds(
    plane: Plane, namespace: str
) -> None:
    async with scene(plane, namespace) as it:
        name = f"{CLUSTERS.plural}.{CLUSTERS.group}"
        definition = await it.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        where = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/removeStrategy"
        field = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        await it.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, [{"op": "remove", "path": where}])

        async def without_strategy() -> bool:
            # For a moment the old schema is served, and with it the default.
            await it.change({"spec": {"removeStrategy": None}})
            return (await it.get()).spec.remove_strategy is None

        try:
            await eventually(without_strategy, "a CRD without the field and its default")
            async with controllers(it.client, namespace):
                await it.put("web")
                await it.deployed("web")
                await it.annotate({REMOVE_STRATEGY_ANNOTATION: "Requierd"})
                await it.delete()
                await it.says("UnknownValue", "Requierd")
                await it.says("UnjoinFailed", "Requierd")
                going = find((await it.get()).status.conditions, "Unjoining")
                assert going
                assert going.status == "True"
                assert it.deleted() == []
                await it.annotate({REMOVE_STRATEGY_ANNOTATION: "Required"})
                assert (await it.gone()).phase is Phase.COMPLETE
            assert await it.on_member() == {}
        finally:
            back = [{"op": "add", "path": where, "value": field["removeStrategy"]}]
            await it.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, back)
