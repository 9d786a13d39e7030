"""Reads from a cluster for a preview: custom resources of CRDs, cloud resources, claims, protection. Only reads."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item
from unwind.kube import decoding
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members import contents
from unwind.members.contents import Content
from unwind.preview import removal_forecast
from unwind.preview.removal_forecast import Forecast, ForecastFate, PlannedStep, forecast
from unwind.protection.deleter import ProtectedObject, protected_object
from unwind.removal import volume_claims
from unwind.removal.foreign_content import is_container

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.api.unwind import Entry
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget


class BoundVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that a claim is bound to."""

    name: str
    claim: ObjectRef
    size: str = ""
    goes: bool
    """Whether its reclaim policy is Delete. If not, it stays and may cost money."""


class CloudResources(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud resources of objects that are deleted."""

    balancers: frozenset[str] = frozenset()
    """Services of type LoadBalancer, by uid."""
    volumes: tuple[BoundVolume, ...] = ()


async def cloud_resources_of(member: Member, refs: Iterable[ObjectRef]) -> CloudResources:
    """The cloud resources of these objects. Reads Services, claims and volumes from the member."""
    services: dict[str, dict[str, ObjectRef]] = {}
    claims: dict[str, dict[str, ObjectRef]] = {}
    for ref in refs:
        for resource, found in ((SERVICES, services), (PERSISTENT_VOLUME_CLAIMS, claims)):
            if (ref.group, ref.kind) == (resource.group, resource.kind):
                found.setdefault(ref.namespace, {})[ref.uid] = ref
    balancers = [
        service["metadata"]["uid"]
        for namespace, wanted in services.items()
        for service in await member.client.list(SERVICES, namespace=namespace)
        if service["metadata"]["uid"] in wanted and service["spec"].get("type") == "LoadBalancer"
    ]
    volumes = []
    for namespace, wanted in claims.items():
        for obj in await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=namespace):
            claim = wanted.get(obj["metadata"]["uid"])
            if claim and (volume := await _volume(member, obj, claim)):
                volumes.append(volume)
    return CloudResources(
        balancers=frozenset(balancers), volumes=tuple(sorted(volumes, key=lambda volume: volume.name))
    )


async def _volume(member: Member, claim: Object, ref: ObjectRef) -> BoundVolume | None:
    name = claim["spec"].get("volumeName")
    if not name:
        return None
    try:
        found = await member.client.get(PERSISTENT_VOLUMES, name)
    except NotFoundError:
        return None
    spec = found["spec"]
    size = (spec.get("capacity") or {}).get("storage", "")
    return BoundVolume(name=name, claim=ref, size=size, goes=spec.get("persistentVolumeReclaimPolicy") == "Delete")


class MemberPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a member."""

    resources: dict[str, int] = {}
    """The number of custom resources of each CRD, by its name."""
    cloud: CloudResources = CloudResources()
    forecast: Forecast = Forecast()
    protected: tuple[ProtectedObject, ...] = ()
    """Objects that would be deleted, but may not be."""
    unseen: str = ""
    """Why it could not be read; empty if it was."""


async def preview_member(fleet: Members, target: ClusterTarget | None, steps: Sequence[PlannedStep]) -> MemberPreview:
    """The preview of these steps on a member, or on the management cluster if `target` is None. An unreachable member
    is reported and is no error."""
    if not any(step.entries for step in steps):
        return MemberPreview()
    try:
        async with fleet.member(target) if target else fleet.management() as member:
            return await _seen(member, target.ref if target else member.ref, steps)
    except UnwindError as error:
        return MemberPreview(unseen=str(error))


async def _seen(member: Member, cluster: ObjectRef, steps: Sequence[PlannedStep]) -> MemberPreview:
    steps = [await with_claims(member, step) for step in steps]
    protected = await _protected(member, cluster, steps)
    tried = [step for step in steps if step.tried]
    seen = await forecast(
        member,
        steps,
        spared=spared(tried, [it for it in protected if not it.by_contents]),
        # What a Namespace or CRD contains now may be removed before it.
        cascading=spared(tried, [it for it in protected if it.by_contents]),
    )
    going = [item.entry for some in seen.steps.values() for item in some if item.fate is ForecastFate.GOES]
    resources = {}
    for ref in [entry.object for entry in going]:
        if (ref.group, ref.kind) == (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind):
            with suppress(NotFoundError):  # deleted concurrently
                found = await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, ref.name)
                if resource := contents.defined_by(found):
                    resources[ref.name] = len(await contents.of_kind(member.client, resource))
    cloud = await cloud_resources_of(member, [entry.object for entry in going])
    uids = {entry.object.uid for entry in going}
    return MemberPreview(
        resources=resources,
        cloud=cloud,
        forecast=seen,
        protected=tuple(item for item in protected if item.object.uid in uids),
    )


async def with_claims(member: Member, step: PlannedStep) -> PlannedStep:
    """The step, with the claims of its StatefulSets that are not in an Inventory yet."""
    known = {entry.object.uid for entry in step.entries}
    made: list[Entry] = []
    for ref in [entry.object for entry in step.entries]:
        if (ref.group, ref.kind) == (STATEFUL_SETS.group, STATEFUL_SETS.kind):
            try:
                found = await member.client.get(STATEFUL_SETS, ref.name, namespace=ref.namespace)
            except NotFoundError:
                continue  # already deleted
            if found["metadata"]["uid"] == ref.uid:
                of_set = await volume_claims.of_set(member, found, order=0, policy=step.volumes)
                made += [item for item in of_set if item.object.uid not in known]
    return msgspec.structs.replace(step, entries=(*step.entries, *made))


def spared(tried: Iterable[PlannedStep], protection: Iterable[ProtectedObject]) -> dict[str, str]:
    """Why objects of steps that are only tried stay, by uid: those that are protected, and the releases around them
    (pure)."""
    held = {it.object.uid: it for it in protection}
    release_of = HelmReleases(None).release_of
    of = {entry.object.uid: release_of(entry) for step in tried for entry in step.entries}
    whole = {release: held[uid] for uid, release in of.items() if uid in held and release is not None}
    found: dict[str, str] = {}
    for uid, release in of.items():
        if uid in held:
            found[uid] = held[uid].why
        elif release is not None and release in whole:
            found[uid] = f"part of {release}, which stays: {whole[release].message}"
    return found


async def _protected(member: Member, cluster: ObjectRef, steps: Sequence[PlannedStep]) -> list[ProtectedObject]:
    """The objects that may not be deleted."""
    found = await protected_entries(member, cluster, [entry for step in steps for entry in step.entries])
    known = {item.object.uid for item in found}
    for entry in [entry for step in steps if step.take_along for entry in step.entries]:
        ref = entry.object
        if is_container(ref) and ref.uid not in known:
            held = await protected_object(member.client, Item("", "", entry).resource, ref, cluster=cluster)
            found += [held] if held else []
    return found


async def protected_entries(member: Member, cluster: ObjectRef, entries: Collection[Entry]) -> list[ProtectedObject]:
    """The objects of these entries that are protected by their label."""
    return await removal_forecast.protected_objects(member, await _labelled(member, entries), cluster=cluster)


async def _labelled(member: Member, entries: Iterable[Entry]) -> list[Content]:
    """The objects with the protection label: few have it, so they are listed by it."""
    kinds = {
        Resource(it.group, it.version, entry.resource, it.kind, namespaced=bool(it.namespace))
        for entry in entries
        for it in (entry.object,)
    }
    uids = {entry.object.uid for entry in entries}
    found: list[Content] = []
    for resource in sorted(kinds, key=lambda one: (one.group, one.plural, one.version)):
        view = decoding.metadata(resource)
        pages = member.client.pages(resource, labels=DELETE_PROTECTION_LABEL, accept=view.accept_list)
        try:
            async with aclosing(pages):
                async for page in pages:
                    found += [Content(resource, view.decode(item)) for item in page.items or ()]
        except ApiError as error:
            if error.code != 404:
                raise
            continue  # a version that is not served any more: the removal finds the served one
    return [content for content in found if content.metadata.uid in uids]
