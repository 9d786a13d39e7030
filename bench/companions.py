"""A member with many Kustomizations of Flux: what they deployed is read and planned, against bare lists of the same.

200 Kustomizations with 20 ConfigMaps each; `UNWIND_BENCH_HANDLES` changes the number. The first row reads and plans.
The second one also writes the Inventories, against the same lists and as many bare creates of Inventories.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING

import msgspec
import uvloop

from bench.addons import config_map, kubeconfig
from bench.ratios import Ratio, alternate
from unwind.api import capi
from unwind.api.flux import KUSTOMIZATIONS
from unwind.api.meta import ObjectRef, manifest
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import ClusterType
from unwind.api.unwind import INVENTORIES, Effort
from unwind.companions import snapshots
from unwind.companions.flux import FluxCompanion
from unwind.companions.snapshots import MemberObjects
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.inventory.inventories import Inventories
from unwind.local import build, tools
from unwind.local.companions import CompanionController
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.manager import garbage_collection
from unwind.members import contents
from unwind.members.members import Members
from unwind.members.targets import AddonTarget
from unwind.planning.waves import Draft, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.api.unwind import Inventory
    from unwind.companions.companion import Handle
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.members.member import Member

HANDLES = int(os.environ.get("UNWIND_BENCH_HANDLES", "200"))
OBJECTS_EACH = 20
PLACE = "default"
AT_ONCE = 16


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        management, [member] = plane.management, plane.members.values()
        await install(management.client, Setting())
        await CompanionController(
            management, tools.KUSTOMIZE_CONTROLLER, await build.toolbox([tools.KUSTOMIZE_CONTROLLER])
        ).install()
        target = await prepare(management.client, member)
        # As the manager does: at Python's default pace, a collection takes as long as the plan.
        garbage_collection.tune()
        async with Members(management.client) as members, members.member(target) as connected:
            await report(management.client, connected, target)


async def prepare(client: Client, member: LocalCluster) -> AddonTarget:
    """The Kustomizations of a cluster, with inventories as Flux writes them, and what they deployed."""
    secret = "bench-kubeconfig"  # noqa: S105 - a name
    await client.create(SECRETS, kubeconfig(member, PLACE, secret, "value"))
    await gather_limited((deploy(client, member.client, number, secret) for number in range(HANDLES)), limit=AT_ONCE)
    ref = ObjectRef(
        group=capi.CLUSTERS.group,
        version=capi.CLUSTERS.version,
        kind="Cluster",
        namespace=PLACE,
        name="bench",
        uid=str(uuid.uuid4()),
    )
    return AddonTarget(type=ClusterType.CAPI, ref=ref, secret=secret, ready=True)


async def deploy(client: Client, member: Client, number: int, secret: str) -> None:
    name = f"app-{number:03}"
    objects = [f"{name}-{item:02}" for item in range(OBJECTS_EACH)]
    labels = {f"{KUSTOMIZATIONS.group}/name": name, f"{KUSTOMIZATIONS.group}/namespace": PLACE}
    for item in objects:
        body = config_map(PLACE, item)
        await member.create(CONFIG_MAPS, body | {"metadata": body["metadata"] | {"labels": labels}})
    before = [{"name": f"app-{number - 1:03}"}] if number % 10 else []
    spec = {
        "interval": "1h",
        "prune": True,
        "sourceRef": {"kind": "GitRepository", "name": "bench"},
        "kubeConfig": {"secretRef": {"name": secret}},
        "dependsOn": before,
    }
    meta = {"name": name, "namespace": PLACE}
    made = await client.create(
        KUSTOMIZATIONS,
        {"apiVersion": KUSTOMIZATIONS.api_version, "kind": KUSTOMIZATIONS.kind, "metadata": meta, "spec": spec},
    )
    entries = [{"id": f"{PLACE}_{item}__ConfigMap", "v": "v1"} for item in objects]
    await client.revise(KUSTOMIZATIONS, made, {"status": {"inventory": {"entries": entries}}}, subresource="status")


async def report(client: Client, member: Member, target: AddonTarget) -> None:
    companion, inventories = FluxCompanion(client), Inventories(client, namespace=HOME)

    async def read() -> list[Handle]:
        return await companion.handles(target, member, [PLACE])

    async def snapshot() -> float:
        began = time.perf_counter()
        handles, objects = await read(), MemberObjects(member)
        await objects.expect([entry.object for handle in handles for entry in handle.entries])
        for handle in handles:
            taken = await snapshots.take(objects, companion, handle)
            assert len(taken.entries) == OBJECTS_EACH
        assert plan(map(draft, handles)).waves == min(10, HANDLES)
        return time.perf_counter() - began

    async def lists() -> float:
        began = time.perf_counter()
        await client.list(KUSTOMIZATIONS, namespace=PLACE)
        await contents.of_kind(member.client, CONFIG_MAPS)
        return time.perf_counter() - began

    took, limit = await alternate(snapshot, lists)
    print(Ratio(f"snapshot and plan of {HANDLES} Kustomizations", "bare lists", took, limit, 1.5))

    async def recorded() -> float:
        began = time.perf_counter()
        handles = await read()
        await snapshots.record_all(inventories, member, handles, lambda _: companion, lambda _: Effort.ENFORCE)
        plan(map(draft, handles))
        took = time.perf_counter() - began
        written.extend(await inventories.on(target.ref.uid))
        await inventories.discard_all(written[-HANDLES:])
        return took

    async def bare() -> float:
        like = [_copy(item) for item in written[-HANDLES:]]
        began = time.perf_counter()
        await lists()
        await gather_limited((client.create(INVENTORIES, body) for body in like), limit=AT_ONCE)
        took = time.perf_counter() - began
        await inventories.discard_all(await inventories.owned(_owners(like)))
        return took

    written: list[Inventory] = []
    took, limit = await alternate(recorded, bare)
    print(Ratio("the same with its Inventories", "bare lists and creates", took, limit, 1.5))


def draft(handle: Handle) -> Draft:
    return Draft(
        name=handle.step,
        object=handle.ref,
        kind="Companion",
        declared=handle.step,
        depends_on=handle.depends_on,
        effort=Effort.ENFORCE,
    )


def _copy(inventory: Inventory) -> Object:
    """The same Inventory under another name and owner."""
    owner = msgspec.structs.replace(inventory.spec.owner, uid=str(uuid.uuid4()))
    meta = msgspec.structs.replace(
        inventory.metadata,
        name=f"{owner.uid}-0",
        uid="",
        resource_version="",
        creation_timestamp=None,
        labels=inventory.metadata.labels | {"unwind.dev/owner": owner.uid},
    )
    spec = msgspec.structs.replace(inventory.spec, owner=owner)
    return manifest(INVENTORIES, msgspec.structs.replace(inventory, metadata=meta, spec=spec))


def _owners(bodies: Sequence[Object]) -> list[str]:
    return [body["spec"]["owner"]["uid"] for body in bodies]


if __name__ == "__main__":
    uvloop.run(main())
