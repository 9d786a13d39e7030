"""Required is strict whatever its steps: the execution namespace must be gone, and late objects are removed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.controllers import HOLD
from tests.plane.support.events import until_event
from tests.plane.support.unjoins import UnjoinScene, controllers, scene
from unwind.api.karmada import CLUSTERS, WORKS, RemoveStrategy, Work
from unwind.api.meta import ObjectMeta, ObjectRef, manifest, ref_of
from unwind.api.names import FORCE_RELEASE_ANNOTATION, MEMBER_LABEL, OWNER_LABEL, SET_ASIDE_LABEL, Finalizer
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.unwind import (
    INVENTORIES,
    TEARDOWNS,
    Cause,
    Entry,
    Inventory,
    InventorySpec,
    MemberRef,
    Phase,
    Plan,
    Teardown,
    TeardownSpec,
)
from unwind.kube.object_watch import until, until_absent
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from unwind.local.plane import Plane


async def add_late(it: UnjoinScene, name: str, *, effort: str = "") -> None:
    """An object on the member that a Work created after the plan was made."""
    owner = str(uuid.uuid4())
    body = profiles.config_map(it.namespace, name)
    body["metadata"]["labels"] = {OWNER_LABEL: owner}
    made = await it.member.client.create(CONFIG_MAPS, body)
    ref = ref_of(CONFIG_MAPS, ObjectMeta(name=name, namespace=it.namespace, uid=made["metadata"]["uid"]))
    inventory = Inventory(
        metadata=ObjectMeta(
            name=f"{owner}-0",
            namespace=it.namespace,
            labels={OWNER_LABEL: owner, MEMBER_LABEL: it.uid},
            finalizers=(Finalizer.INVENTORY.value,),
        ),
        spec=InventorySpec(
            owner=ObjectRef(
                group=WORKS.group, version=WORKS.version, kind="Work", namespace=it.execution, name=name, uid=owner
            ),
            member=MemberRef(
                object=ref_of(CLUSTERS, (await it.get()).metadata), system_uid=await it.member.client.cluster_uid()
            ),
            effort=effort,
            entries={"late": Entry(object=ref, resource="configmaps", state="Confirmed")},
        ),
    )
    await it.client.create(INVENTORIES, manifest(INVENTORIES, inventory))


async def hold(it: UnjoinScene, name: str) -> None:
    """Keep a Work, and so its namespace, with a finalizer of someone else."""
    work = await it.client.get(WORKS, name, namespace=it.execution, type=Work)
    held = {"metadata": {"finalizers": [*work.metadata.finalizers, HOLD]}}
    await it.client.patch(WORKS, name, held, namespace=it.execution)


async def free(it: UnjoinScene, name: str) -> None:
    await it.client.patch(WORKS, name, {"metadata": {"finalizers": None}}, namespace=it.execution)


async def let_time_pass(it: UnjoinScene, clock: StillClock) -> None:
    """Let each part of a cleanup that nothing may block run out of time, until the member is gone."""

    async def gone() -> bool:
        clock.advance(11)
        return (await it.client.sighting(CLUSTERS, it.name, uid=it.uid)).absent

    await eventually(gone, "the member is gone")


@pytest.mark.parametrize("strategy", [RemoveStrategy.REQUIRED, RemoveStrategy.NEEDLESS])
async def test_only_required_waits_for_its_namespace_and_removes_late_objects_without_an_enforced_step(
    plane: Plane, namespace: str, strategy: RemoveStrategy
) -> None:
    async with scene(plane, namespace, remove_strategy=strategy) as it:
        async with controllers(it.client, namespace):
            await it.put("kept", preserveResourcesOnDeletion=True)
            await it.deployed("kept")
            await hold(it, "kept")
            await it.delete()
            record = await it.teardown(lambda one: one.finished, "finished")
            assert record.phase is Phase.COMPLETE
            assert record.spec.plan
            assert {step.effort for step in record.spec.plan.steps} == {"Leave"}
            await it.says("UnjoinFailed", f"Namespace {it.execution}", HOLD)
        await add_late(it, "late")
        await add_late(it, "late-kept", effort="Leave")
        async with controllers(it.client, namespace, clock=(clock := StillClock())):
            if strategy is RemoveStrategy.REQUIRED:
                await until_absent(it.member.client, CONFIG_MAPS, "late", namespace=namespace)
                await it.says("UnjoinFailed", f"Namespace {it.execution}", HOLD)
                clock.advance(120)  # more than enough for a member that nothing may block
                await it.says("UnjoinFailed", f"Namespace {it.execution}", HOLD)
                await free(it, "kept")
            else:
                await let_time_pass(it, clock)
            assert (await it.gone()).phase is Phase.COMPLETE
        if strategy is RemoveStrategy.NEEDLESS:
            assert it.deleted() == []
            await free(it, "kept")
        else:
            assert it.deleted() == ["late"]
        there = await it.on_member()
        assert set(there) == {"kept-0", "kept-1", "late-kept"} | ({"late"} if not it.deleted() else set())


async def test_required_without_works_is_unjoined_with_its_namespace(plane: Plane, namespace: str) -> None:
    async with (
        scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it,
        controllers(it.client, namespace),
    ):
        await until(it.client, CLUSTERS, it.name, lambda one: one is not None and bool(one.get("status")), "probed")
        await it.delete()
        assert (await it.gone()).phase is Phase.COMPLETE
        await it.nothing_left()


async def test_a_person_may_let_a_member_go_whose_namespace_stays(plane: Plane, namespace: str) -> None:
    async with (
        scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it,
        controllers(it.client, namespace, clock=(clock := StillClock())),
    ):
        await it.put("web")
        await it.deployed("web")
        await hold(it, "web")
        await it.delete()
        await it.says("UnjoinFailed", f"Namespace {it.execution}", HOLD)
        await it.annotate({FORCE_RELEASE_ANNOTATION: "the namespace is examined"}, by="jane")

        await let_time_pass(it, clock)
        record = await it.record()
        assert record.phase is Phase.COMPLETE
        assert record.status.release
        assert (record.status.release.reason, record.status.release.message) == ("Forced", "the namespace is examined")
        await free(it, "web")


async def test_a_plan_that_an_older_crd_does_not_store_unjoins_nothing_until_the_crd_is_updated(
    plane: Plane, namespace: str
) -> None:
    name = f"{TEARDOWNS.plural}.{TEARDOWNS.group}"
    where = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/plan/properties/effort"
    async with scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it:
        definition = await it.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        field: Any = definition
        for part in where.split("/")[1:]:
            field = field[int(part) if part.isdecimal() else part]
        async with controllers(it.client, namespace):
            await it.put("kept", preserveResourcesOnDeletion=True)
            await it.deployed("kept")
        await it.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, [{"op": "remove", "path": where}])
        try:
            await eventually(lambda: drops_effort(it), "a CRD without the field")
            # Without a retry: a manager that ends while it writes the record leaves it to be set aside.
            async with controllers(it.client, namespace, clock=StillClock()):
                await it.delete()
                event = await until_event(it.client, it.uid, reason="RecordNotStored")
                assert "did not store spec.plan.effort" in event["note"]
                assert "unwind install" in event["note"]
                assert not (await it.client.sighting(CLUSTERS, it.name, uid=it.uid)).absent
        finally:
            back = [{"op": "add", "path": where, "value": field}]
            await it.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, back)
        await eventually(lambda: stores_effort(it), "a CRD with the field")
        async with controllers(it.client, namespace):
            record = await it.gone()
        assert record.phase is Phase.COMPLETE
        assert record.spec.plan
        assert record.spec.plan.effort == "Enforce"
        assert (record.metadata.name, SET_ASIDE_LABEL in record.metadata.labels) == (it.uid, False)


async def stores_effort(it: UnjoinScene) -> bool:
    """Whether the API server stores the effort of a plan."""
    spec = TeardownSpec(
        title="probe",
        target=ObjectRef(version="v1", kind="ConfigMap", name="probe"),
        cause=Cause.WITHDRAWN.value,
        plan=Plan(effort="Enforce"),
    )
    body = manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=f"probe-{it.name}"), spec=spec))
    made = await it.client.create(TEARDOWNS, body)
    await it.client.delete(TEARDOWNS, made["metadata"]["name"], uid=made["metadata"]["uid"])
    return bool(made["spec"]["plan"].get("effort"))


async def drops_effort(it: UnjoinScene) -> bool:
    return not await stores_effort(it)
