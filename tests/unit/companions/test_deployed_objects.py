"""What a handle deployed: which claims are recorded before it is deleted, and which are in the ledger at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import Effort, Entry, Inventory, InventorySpec, MemberRef, Step
from unwind.clock import SYSTEM
from unwind.companions.deployed_objects import DeployedObjects
from unwind.kube.errors import APIStatus, NotFoundError

CLUSTER = ObjectRef(kind="Cluster", namespace="shops", name="prod", uid="u-prod")
HANDLE = ObjectRef(kind="Kustomization", namespace="shop", name="apps", uid="u-apps")
SET = Entry(
    object=ObjectRef(group="apps", kind="StatefulSet", namespace="shop", name="db", uid="u-db"), state="Confirmed"
)


def claim(name: str) -> Entry:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="shop", name=name, uid=f"u-{name}")
    return Entry(object=ref, source="StatefulSet db", state="Confirmed", kept=True)


def chunk(owner: str, **entries: Entry) -> Inventory:
    ref = msgspec.structs.replace(HANDLE, name=owner, uid=f"u-{owner}")
    spec = InventorySpec(owner=ref, member=MemberRef(object=CLUSTER, system_uid="s"), entries=entries)
    return Inventory(metadata=ObjectMeta(name=owner), spec=spec)


def deployed(own: Inventory, *others: Inventory, claims: tuple[str, ...] = ()) -> tuple[DeployedObjects, Any]:
    """The objects of `own` on a member with these claims, and the Inventories that it writes to.

    `others`: the Inventories of other steps.
    """
    stateful_set = {
        "metadata": {"name": "db", "namespace": "shop", "uid": "u-db"},
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}], "selector": {}},
    }
    made = {
        name: {"metadata": {"name": name, "namespace": "shop", "uid": f"u-{name}", "resourceVersion": "1"}}
        for name in claims
    }

    async def get(resource: Any, name: str, *, namespace: str | None = None) -> Any:
        if resource.kind == "StatefulSet":
            return stateful_set
        if name not in made:
            raise NotFoundError(APIStatus(code=404, reason="NotFound"), request=f"GET {namespace}/{name}")
        return made[name]

    client = SimpleNamespace(get=get, list=AsyncMock(return_value=list(made.values())))
    inventories = SimpleNamespace(
        on=AsyncMock(return_value=[own, *others]), of=AsyncMock(return_value=[own]), write=AsyncMock()
    )
    context = SimpleNamespace(
        step=Step(name="apps", object=HANDLE, effort=Effort.ENFORCE.value),
        target=SimpleNamespace(ref=CLUSTER),
        means=SimpleNamespace(inventories=inventories, clock=SYSTEM),
    )
    member: Any = SimpleNamespace(client=client)
    companion: Any = SimpleNamespace(controller="Flux")
    found = DeployedObjects(companion, cast("Any", context), {"apps": own}, member, cast("Any", None))
    return found, inventories


async def test_claims_that_another_step_has_recorded_are_left_to_it() -> None:
    drain = chunk("drain", one=claim("data-db-1"))
    objects, _ = deployed(chunk("apps", db=SET), drain, claims=("data-db-0", "data-db-1"))
    assert [entry.object.name for entry in (await objects._staying_claims()).values()] == ["data-db-0"]


async def test_a_claim_that_is_gone_at_the_end_is_not_in_the_ledger() -> None:
    own = chunk("apps", db=SET, zero=claim("data-db-0"), one=claim("data-db-1"))
    objects, inventories = deployed(own, claims=("data-db-0",))
    await objects.note()
    [written] = [call.args[1] for call in inventories.write.await_args_list]
    assert {key: change.get("state", "") for key, change in written.items()} == {
        "db": "Removed",
        "zero": "",
        "one": "Removed",
    }
    assert "a claim of StatefulSet db" in written["zero"]["ledger"]["message"]
    assert written["zero"]["ledger"]["by"] == "unwind"
