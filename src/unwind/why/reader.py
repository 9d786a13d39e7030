"""Reads an object and everything that matters for its deletion from the API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, sveltos
from unwind.api.names import SET_ASIDE_LABEL, SVELTOS_CLUSTER_PROFILE_LABEL, SVELTOS_PROFILE_LABEL, Finalizer
from unwind.api.resources import (
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    Resource,
)
from unwind.api.unwind import INVENTORIES, TEARDOWNS, EntryState, Inventory, Teardown
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members import contents
from unwind.why import facts
from unwind.why.answers import Thing
from unwind.why.controller_workloads import behind_service, conversion_of, manager_runs, workloads
from unwind.why.facts import Node, ObjectReport, Silent, Unlisted, cut
from unwind.why.finalizers import needs_workloads
from unwind.why.reachable_clusters import as_thing, moment, thing_of

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.members.contents import Content
    from unwind.why.facts import ObjectSnapshot
    from unwind.why.reachable_clusters import ReachableCluster

_AT_ONCE = 16
_OWNING = ("foregroundDeletion", "orphan")
_PROFILES = {
    (resource.group, resource.kind): label
    for resource, label in (
        (sveltos.CLUSTER_PROFILES, SVELTOS_CLUSTER_PROFILE_LABEL),
        (sveltos.PROFILES, SVELTOS_PROFILE_LABEL),
    )
}
"""The label that selects the ClusterSummaries of a profile."""
_CONTROLLERS = 5
"""Maximum number of controllers above a Pod."""


async def read_facts(place: ReachableCluster, thing: Thing, obj: Object, *, now: datetime) -> ObjectSnapshot:
    """The facts that matter for its deletion. What cannot be read is noted and left out. Raises only if API discovery
    fails."""
    look = facts.facts_of(thing, obj)
    gathering = _Gathering(place, look.thing, obj)
    change: dict[str, Any] = {}
    kind = (thing.resource.group, thing.resource.kind)
    finalizers = look.seen.finalizers
    deleted = look.seen.deleted_at is not None
    if words := await gathering.warnings():
        change["words"] = (*words, *look.words)
    if deleted and any(needs_workloads(finalizer, kind[1]) for finalizer in finalizers):
        change["workloads"] = await workloads(place)
    if deleted and any(finalizer in _OWNING for finalizer in finalizers):
        change["dependents"] = await gathering.dependents()
    if kind == ("", "Namespace") and deleted:
        change |= await gathering.namespace()
    elif kind == (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind) and deleted:
        change |= await gathering.definition()
    elif kind == ("", "PersistentVolumeClaim"):
        change["users"] = await gathering.users()
    elif kind == ("", "PersistentVolume"):
        change["users"] = await gathering.claim()
    elif kind == ("", "Pod"):
        change["node"] = await gathering.node()
        change["controller"] = await gathering.controller()
    elif kind == (capi.CLUSTERS.group, capi.CLUSTERS.kind) and deleted:
        change["contents"] = await gathering.components()
    elif kind in _PROFILES and deleted:
        change["dependents"] = await gathering.summaries(_PROFILES[kind])
    if kind == (capi.CLUSTERS.group, capi.CLUSTERS.kind) or any(
        finalizer in tuple(Finalizer) for finalizer in finalizers
    ):
        change["teardowns"] = await gathering.teardowns()
        change["manager_runs"] = await manager_runs(place, now=now)
    if deleted and any(finalizer in (Finalizer.SUMMARY, Finalizer.WORK) for finalizer in finalizers):
        change |= await gathering.placed()
    return msgspec.structs.replace(look, **change)


class _Gathering:
    """Reads the surroundings of one object."""

    def __init__(self, place: ReachableCluster, thing: Thing, obj: Object) -> None:
        self._place = place
        self._client = place.client
        self._thing = thing
        self._obj = obj

    async def warnings(self) -> tuple[ObjectReport, ...]:
        """The latest warning Events about it, newest first."""
        where = self._thing.namespace or "default"
        try:
            found = await self._client.list(EVENTS, namespace=where, fields=f"involvedObject.uid={self._thing.uid}")
        except UnwindError as error:
            self._place.unseen(f"Events of {self._thing}", error)
            return ()
        told = [
            ObjectReport(
                by=str((item.get("source") or {}).get("component") or item.get("reportingComponent") or "an Event"),
                message=cut(f"{item.get('reason', '')}: {item.get('message', '')}"),
                at=moment(
                    item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp")
                ),
            )
            for item in found
            if item.get("type") == "Warning"
        ]
        return tuple(sorted(told, key=lambda one: one.at or datetime.min.replace(tzinfo=UTC), reverse=True)[:3])

    async def dependents(self) -> tuple[Thing, ...]:
        """Its blocking dependents: the garbage collector waits only for those with blockOwnerDeletion."""
        found, unlisted = await self._everything(self._thing.namespace or None)
        for item in unlisted:
            self._place.unseen(item.kind, UnwindError(item.error))
        foreground = "foregroundDeletion" in self._obj["metadata"].get("finalizers", ())
        mine = [
            item
            for item in found
            for owner in item.metadata.owner_references
            if owner.uid == self._thing.uid and (owner.block_owner_deletion or not foreground)
        ]
        return _things(mine)

    async def namespace(self) -> dict[str, Any]:
        found, unlisted = await self._everything(self._thing.name)
        ours = [item for item in found if not contents.made_by_the_server(item)]
        return {"contents": _things(ours or found), "unlisted": tuple(unlisted), "silent": await self._silent()}

    async def definition(self) -> dict[str, Any]:
        resource = contents.defined_by(self._obj)
        if resource is None:
            return {}
        # The API server lists them in the storage version, which needs no conversion.
        stored = [item["name"] for item in self._obj["spec"]["versions"] if item["storage"] and item["served"]]
        resource = msgspec.structs.replace(resource, version=stored[0] if stored else resource.version)
        try:
            found = await contents.of_kind(self._client, resource)
        except ApiError as error:
            return {"unlisted": (await conversion_of(self._place, resource, error),)}
        except UnwindError as error:
            self._place.unseen(resource.kind, error)
            return {}
        return {"contents": _things(found)}

    async def users(self) -> tuple[Thing, ...]:
        """The Pods that use a claim. The API server counts only those that are assigned to a node."""
        try:
            found = await self._client.list(PODS, namespace=self._thing.namespace)
        except UnwindError as error:
            self._place.unseen("Pods", error)
            return ()
        using = [item for item in found if item["spec"].get("nodeName") and self._thing.name in _claims(item)]
        return tuple(as_thing(PODS, item) for item in using)

    async def claim(self) -> tuple[Thing, ...]:
        ref = self._obj["spec"].get("claimRef") or {}
        if (self._obj.get("status") or {}).get("phase") != "Bound" or not ref.get("name"):
            return ()
        return (
            Thing(
                resource=PERSISTENT_VOLUME_CLAIMS,
                name=ref["name"],
                namespace=ref.get("namespace", ""),
                uid=ref.get("uid", ""),
            ),
        )

    async def node(self) -> Node | None:
        name = self._obj["spec"].get("nodeName")
        if not name:
            return None
        try:
            found = await self._client.get(NODES, name)
        except NotFoundError:
            return Node(name=name, there=False)
        except UnwindError as error:
            self._place.unseen(f"Node {name}", error)
            return Node(name=name, there=True, ready=True)  # nothing says that it is lost
        for condition in (found.get("status") or {}).get("conditions") or ():
            if condition["type"] == "Ready":
                since = moment(condition.get("lastTransitionTime"))
                return Node(name=name, there=True, ready=condition["status"] == "True", since=since)
        return Node(name=name, there=True)

    async def controller(self) -> Thing | None:
        """The outermost controller that would recreate the object."""
        top: Thing | None = None
        above = self._obj
        for _ in range(_CONTROLLERS):
            owner = next(
                (
                    reference
                    for reference in above["metadata"].get("ownerReferences") or ()
                    if reference.get("controller")
                ),
                None,
            )
            if owner is None:
                return top
            try:
                group = owner["apiVersion"].rpartition("/")[0]
                thing = await thing_of(
                    self._place,
                    group=group,
                    kind=owner["kind"],
                    name=owner["name"],
                    namespace=self._thing.namespace,
                    uid=owner["uid"],
                )
                above = await self._client.get(thing.resource, thing.name, namespace=thing.namespace or None)
            except NotFoundError:
                return top
            except UnwindError as error:
                self._place.unseen(f"{owner['kind']} {owner['name']}", error)
                return top
            if above["metadata"]["uid"] != owner["uid"]:
                return top
            top = thing
        return top

    async def components(self) -> tuple[Thing, ...]:
        """The remaining infrastructure objects of a Cluster API Cluster. The control plane is deleted first."""
        cluster = msgspec.convert(self._obj, capi.Cluster)
        found: list[Thing] = []
        for ref in (cluster.spec.control_plane_ref, cluster.spec.infrastructure_ref):
            if ref is None or not ref.name:
                continue
            try:
                thing = await thing_of(
                    self._place, group=ref.group, kind=ref.kind, name=ref.name, namespace=self._thing.namespace
                )
                there = await self._client.get(thing.resource, thing.name, namespace=thing.namespace or None)
            except NotFoundError:
                continue
            except UnwindError as error:
                self._place.unseen(f"{ref.kind} {ref.name}", error)
                continue
            found.append(msgspec.structs.replace(thing, uid=there["metadata"]["uid"]))
        return tuple(found)

    async def teardowns(self) -> tuple[Teardown, ...]:
        """The unfinished Teardowns with this object as target or step."""
        kinds = await self._place.discovery.kinds()
        if not any((kind.resource.group, kind.resource.kind) == (TEARDOWNS.group, TEARDOWNS.kind) for kind in kinds):
            return ()
        try:
            found = msgspec.convert(await self._client.list(TEARDOWNS), list[Teardown])
        except UnwindError as error:
            self._place.unseen("Teardowns", error)
            return ()
        uid = self._thing.uid
        return tuple(
            item
            for item in found
            if not item.finished
            and SET_ASIDE_LABEL not in item.metadata.labels
            and (
                item.spec.target.uid == uid
                or any(step.object.uid == uid for step in (item.spec.plan.steps if item.spec.plan else ()))
            )
        )

    async def summaries(self, label: str) -> tuple[Thing, ...]:
        """The ClusterSummaries of a profile."""
        try:
            found = await self._client.list(
                sveltos.CLUSTER_SUMMARIES,
                namespace=self._thing.namespace or None,
                labels=f"{label}={self._thing.name}",
            )
        except UnwindError as error:
            self._place.unseen("ClusterSummaries", error)
            return ()
        return tuple(as_thing(sveltos.CLUSTER_SUMMARIES, item) for item in found)

    async def placed(self) -> dict[str, Any]:
        """The objects in its Inventories that are not verified absent yet."""
        try:
            found = msgspec.convert(await self._client.list(INVENTORIES), list[Inventory])
        except UnwindError as error:
            self._place.unseen("Inventories", error)
            return {}
        mine = [item.spec for item in found if item.spec.owner.uid == self._thing.uid]
        refs = [
            entry.object
            for spec in mine
            for entry in spec.entries.values()
            if entry.state == EntryState.CONFIRMED and not entry.left and not entry.kept
        ]
        where = mine[0].member.object if mine else None
        return {"placed": tuple(sorted(refs, key=str)), "placed_on": where}

    async def _silent(self) -> tuple[Silent, ...]:
        names = await self._place.discovery.silent()
        found = []
        for name in names:
            thing = Thing(resource=API_SERVICES, name=name)
            try:
                it = await self._client.get(API_SERVICES, name)
            except NotFoundError:
                continue  # it was just deleted
            except UnwindError as error:
                self._place.unseen(str(thing), error)
                found.append(Silent(service=thing))
                continue
            service = it["spec"].get("service")
            conditions: list[Object] = it.get("status", {}).get("conditions") or []
            told = next((obj for obj in conditions if obj["type"] == "Available"), {})
            found.append(
                Silent(
                    service=msgspec.structs.replace(thing, uid=it["metadata"]["uid"]),
                    behind=f"{service['namespace']}/{service['name']}" if service else "",
                    workload=await behind_service(self._place, service["namespace"], service["name"])
                    if service
                    else None,
                    message=told.get("message", ""),
                    since=moment(told.get("lastTransitionTime")),
                )
            )
        return tuple(found)

    async def _everything(self, namespace: str | None) -> tuple[list[Content], list[Unlisted]]:
        """All objects that can be listed, and the kinds that cannot."""
        kinds = contents.listable(await self._place.discovery.kinds(anew=True), namespaced=namespace is not None)
        silent = await self._place.discovery.silent()
        found: list[Content] = []
        unlisted: list[Unlisted] = []
        forbidden: list[str] = []

        async def look(resource: Resource) -> None:
            try:
                found.extend(await contents.of_kind(self._client, resource, namespace=namespace))
            except ApiError as error:
                # Without permission, or after its CRD is gone, it does not matter: the API server's controllers see for
                # themselves.
                if error.code == 403:
                    forbidden.append(resource.plural)
                elif error.code not in (404, 405):
                    unlisted.append(await conversion_of(self._place, resource, error))
            except UnwindError as error:
                self._place.unseen(resource.plural, error)

        # APIs that are not served are reported as a whole.
        asked = [kind for kind in kinds if f"{kind.version}.{kind.group}" not in silent]
        await gather_limited((look(resource) for resource in asked), limit=_AT_ONCE)
        if forbidden:
            self._place.unseen(", ".join(sorted(forbidden)), UnwindError(facts.NOT_ALLOWED, remedy=facts.GET_THE_RIGHT))
        return found, sorted(unlisted, key=lambda one: one.kind)


def _claims(pod: Object) -> set[str]:
    """The claims that a Pod uses, including those of ephemeral volumes."""
    names = set()
    for volume in pod["spec"].get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            names.add(claim["claimName"])
        elif "ephemeral" in volume:
            names.add(f"{pod['metadata']['name']}-{volume['name']}")
    return names


def _things(found: list[Content]) -> tuple[Thing, ...]:
    """Likely blockers first: objects with a deletionTimestamp and finalizers, then those that are not being deleted."""

    def urgency(one: Content) -> tuple[int, str]:
        it = one.metadata
        if it.deletion_timestamp and it.finalizers:
            return 0, str(one)
        return (1 if it.deletion_timestamp is None else 2), str(one)

    return tuple(
        Thing(
            resource=content.resource,
            name=content.metadata.name,
            namespace=content.metadata.namespace,
            uid=content.metadata.uid,
        )
        for content in sorted(found, key=urgency)
    )
