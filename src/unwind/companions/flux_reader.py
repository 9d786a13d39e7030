"""Kustomizations and HelmReleases of Flux, and what they deployed, read from the API servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, Kustomization
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.resources import NAMESPACES, Resource
from unwind.companions import flux_rules as rules
from unwind.companions.companion import HandleEntry
from unwind.companions.flux_handles import FoundHandle, ordering
from unwind.companions.flux_rules import Place
from unwind.companions.helm_release_rules import KEPT_CRD
from unwind.concurrency import gather_limited
from unwind.deploy.helm_install import parts_of
from unwind.errors import UnwindError
from unwind.helm import release_secrets
from unwind.kube.errors import ApiError, ForbiddenError, NotFoundError
from unwind.kube.installed_kinds import is_installed
from unwind.members import contents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.companions.flux_rules import FluxObject
    from unwind.helm.release_secrets import ChartManifest
    from unwind.kube.client import Client
    from unwind.members.member import Member

_TYPES: dict[Resource, type[Kustomization | HelmRelease]] = {
    KUSTOMIZATIONS: Kustomization,
    HELM_RELEASES: HelmRelease,
}
_AT_ONCE = 16
# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404
_SELECTED = 50
"""Handles in one label selector."""
_ABOVE = 500
"""Up to this number of Kustomizations and HelmReleases that are no steps are read for the order of those that are."""


async def listed(client: Client, resource: Resource, *, namespace: str | None = None) -> Sequence[FluxObject]:
    """The objects of a kind of Flux; none if its CRD is not installed. Raises if that is unknown."""
    try:
        return await client.list_of(resource, _TYPES[resource], namespace=namespace)
    except ApiError as error:
        # Only the absence of the CRD proves that there are none.
        if error.code == _NOT_SERVED and not await is_installed(client, resource):
            return ()
        raise


async def get(client: Client, place: Place) -> FluxObject:
    """A Kustomization or HelmRelease, read from the API server. Raises NotFoundError."""
    if place.kind == KUSTOMIZATIONS.kind:
        return await client.get(KUSTOMIZATIONS, place.name, namespace=place.namespace, type=Kustomization)
    return await client.get(HELM_RELEASES, place.name, namespace=place.namespace, type=HelmRelease)


async def read_order(
    client: Client, handles: Iterable[FluxObject], listed: Mapping[Place, FluxObject], *, needed: bool
) -> tuple[list[FluxObject], dict[Place, str]]:
    """What orders these handles on the management cluster without being a step itself, and why some of that was not
    read: what contains them, what they depend on, and what contains those, and so on. `listed`: those that are read
    already. `needed`: whether to raise if reading one is forbidden."""
    known = {rules.place_of(obj): obj for obj in handles}
    steps, unread = set(known), dict[Place, str]()
    waiting = set[Place]().union(*map(ordering, known.values())) - steps

    async def read(place: Place) -> None:
        try:
            known[place] = listed[place] if place in listed else await get(client, place)
        except NotFoundError:
            return
        except ForbiddenError as error:
            if needed:
                raise
            unread[place] = str(error)
        except ApiError as error:
            resource = KUSTOMIZATIONS if place.kind == KUSTOMIZATIONS.kind else HELM_RELEASES
            if error.code != _NOT_SERVED or await is_installed(client, resource):
                raise

    looked_for = set(steps)
    while waiting:
        looked_for |= waiting
        if len(looked_for) - len(steps) > _ABOVE:
            raise UnwindError(
                f"cannot determine the order of Kustomizations and HelmReleases: they depend on more than {_ABOVE}"
                " that are not on this cluster",
                remedy="remove some of their dependsOn",
            )
        await gather_limited((read(place) for place in waiting), limit=_AT_ONCE)
        waiting = {it for place in waiting if place in known for it in ordering(known[place])} - looked_for
    return [obj for place, obj in known.items() if place not in steps], unread


# What they deployed


async def found_handles(
    resource: Resource, objs: Sequence[FluxObject], member: Member, *, on_member: bool
) -> list[FoundHandle]:
    """These Kustomizations or HelmReleases with what each deployed on the member."""
    recorded = [await recorded_entries(obj, member) for obj in objs]
    forgotten = [ref_of(resource, obj.metadata) for obj, entries in zip(objs, recorded, strict=True) if not entries]
    labelled = await _labelled(forgotten, member) if forgotten else {}
    return [
        FoundHandle(
            resource=resource,
            obj=obj,
            on_member=on_member,
            entries=entries or labelled.get(obj.metadata.uid, ()),
            forgotten=not entries and obj.metadata.uid in labelled and not _forgets(obj),
        )
        for obj, entries in zip(objs, recorded, strict=True)
    ]


async def found_handle(obj: FluxObject, member: Member, *, on_member: bool = False) -> FoundHandle:
    """One handle with what it deployed on the member."""
    return (await found_handles(rules.kind_of(obj), [obj], member, on_member=on_member))[0]


def _forgets(obj: FluxObject) -> bool:
    """Whether its controller forgets what it deployed when it has removed it: helm-controller does, with or without
    waiting for its objects."""
    return isinstance(obj, HelmRelease) and obj.metadata.terminating


def is_recorded(obj: HelmRelease) -> bool:
    return bool(obj.status.inventory or obj.status.storage_namespace)


async def recorded_entries(obj: FluxObject, member: Member) -> tuple[HandleEntry, ...]:
    """What a handle deployed, by its inventory or the Secrets of its release; empty if it has neither."""
    if isinstance(obj, Kustomization) or obj.status.inventory:
        return tuple(HandleEntry(object=ref) for ref in rules.inventory_of(obj))
    return await _release_entries(obj, member) if obj.status.storage_namespace else ()


async def labelled_entries(handle: ObjectRef, member: Member) -> tuple[HandleEntry, ...]:
    """The objects on the member that carry Flux's labels for a handle. Expensive: lists every kind."""
    return (await _labelled([handle], member)).get(handle.uid, ())


async def _labelled(handles: Sequence[ObjectRef], member: Member) -> dict[str, tuple[HandleEntry, ...]]:
    """The objects on the member that carry Flux's labels for handles of one kind, by the uid of the handle. Lists every
    kind once for many handles."""
    # On the management cluster the manager has few rights: what it may not read is refused when the plan is made.
    home = member.ref.kind == NAMESPACES.kind
    entries: dict[str, list[HandleEntry]] = {}
    for begin in range(0, len(handles), _SELECTED):
        some = handles[begin : begin + _SELECTED]
        labels = rules.mark_selector(some)
        found = await contents.cluster_contents(member.client, member.discovery, labels=labels, readable=home)
        for item in found:
            entry = HandleEntry(object=msgspec.structs.replace(ref_of(item.resource, item.metadata), uid=""))
            for handle in some:
                if rules.is_marked(handle, item.metadata.labels or {}):
                    entries.setdefault(handle.uid, []).append(entry)
    return {uid: tuple(those) for uid, those in entries.items()}


async def _release_entries(obj: HelmRelease, member: Member) -> tuple[HandleEntry, ...]:
    """What the Helm release of a handle deployed, from its Secrets: helm-controller before 1.5 keeps no inventory."""
    entries: dict[ObjectRef, HandleEntry] = {}
    for name in dict.fromkeys(item.name for item in obj.status.history):
        revisions = await release_secrets.history(member.client, namespace=obj.status.storage_namespace, release=name)
        # A failed upgrade leaves objects of the last two.
        for revision in revisions[-2:]:
            release = revision.release
            manifests, crds = await asyncio.to_thread(_manifests_of, release)
            parts = await parts_of(member, manifests, namespace=release.namespace)
            served = {id(part.manifest): part.ref for part in parts}
            for item in manifests:
                # Whether an object of a kind that is not served exists is decided when it is looked for.
                ref = served.get(id(item)) or ObjectRef(
                    group=item.group, version=item.version, kind=item.kind, namespace=item.namespace, name=item.name
                )
                entries[ref] = HandleEntry(object=ref)
            for item in crds:
                ref = ObjectRef(group=item.group, version=item.version, kind=item.kind, name=item.name)
                entries.setdefault(ref, HandleEntry(object=ref, kept=KEPT_CRD))
    return tuple(entries.values())


def _manifests_of(release: release_secrets.HelmRelease) -> tuple[list[ChartManifest], list[ChartManifest]]:
    """The objects of a revision without its hooks, and the CRDs in the crds directory of its chart."""
    found = release_secrets.release_manifests(release)
    return [item for item in found if not item.hook], release_secrets.crd_manifests(release)
