"""Adopts objects on a member that a former owner deployed, from another management cluster.

`clusterctl move` creates the Cluster in another management cluster. There, the profile has a new ClusterSummary, with
another uid than the one that its objects on the member are labelled with.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from unwind.api.meta import ref_of
from unwind.api.names import ADOPTED_ANNOTATION, OWNER_LABEL, SVELTOS_REFERENCE_ANNOTATION
from unwind.api.resources import SECRETS
from unwind.api.unwind import Entry, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import TransientError
from unwind.deploy.owner_marks import profile_in
from unwind.deploy.placements import inventory_key
from unwind.inventory.writer import Records
from unwind.kube import decoding
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.members.contents import Content, listable

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.api.resources import Resource
    from unwind.deploy.owner_marks import DeploymentOwner
    from unwind.inventory.inventories import Inventories
    from unwind.members.member import Member

_AT_ONCE = 16
_HELM_LABEL = "owner"
_HELM = "helm"


async def adopt_former(member: Member, inventories: Inventories, owner: DeploymentOwner) -> list[str]:
    """Record the objects of `owner.former` on a member in the inventory of the owner, and set its label on them.

    Each is recorded by its uid before its label is changed, so it can be repeated after an interruption. Helm releases
    are not adopted here but when their chart is deployed; their names are returned. Objects of other profiles are not
    changed. Raises if the member cannot be listed completely.
    """
    found = await _labelled(member, owner.former)
    records = Records(inventories, owner.object, member, effort=owner.effort)
    await records.load(exactly=True)
    known = records.entries
    objects = {_key(it): it for it in found if _reference(it) and _was(owner, it)}
    await records.put({key: _entry(it) for key, it in objects.items() if key not in known})
    await gather_limited((_relabel(member, it, owner) for it in objects.values()), limit=_AT_ONCE)
    return sorted({str(it) for it in found if _is_release(it)})


async def _labelled(member: Member, owners: Collection[str]) -> list[Content]:
    """All objects with the label of these owners."""
    resources = listable(await member.discovery.kinds(anew=True), namespaced=False)
    if silent := await member.discovery.silent():
        named = ", ".join(silent)
        raise TransientError(
            f"cannot list the objects that were deployed before the cluster was moved: {named} does not answer",
            remedy="fix or delete its APIService",
        )
    selector = f"{OWNER_LABEL} in ({','.join(sorted(owners))})"
    found: list[Content] = []

    async def look(resource: Resource) -> None:
        view = decoding.metadata(resource)
        pages = member.client.pages(resource, labels=selector, accept=view.accept_list)
        async with aclosing(pages):
            async for page in pages:
                found.extend(Content(resource, view.decode(item)) for item in page.items or ())

    await gather_limited((look(resource) for resource in resources), limit=_AT_ONCE)
    return found


def _reference(it: Content) -> str:
    """The source of its manifest; empty if it was not deployed from a manifest."""
    annotations = it.metadata.annotations or {}
    kind, namespace, name = (
        annotations.get(f"{SVELTOS_REFERENCE_ANNOTATION}{field}", "") for field in ("kind", "namespace", "name")
    )
    return f"{kind} {namespace}/{name}" if kind and name else ""


def _was(owner: DeploymentOwner, it: Content) -> bool:
    return owner.was((it.metadata.labels or {}).get(OWNER_LABEL, ""), profile_in(it.metadata.annotations or {}))


def _is_release(it: Content) -> bool:
    return it.resource == SECRETS and (it.metadata.labels or {}).get(_HELM_LABEL) == _HELM


def _key(it: Content) -> str:
    return inventory_key(it.resource.group, it.resource.kind, it.metadata.namespace, it.metadata.name)


def _entry(it: Content) -> Entry:
    resource, metadata = it.resource, it.metadata
    return Entry(
        object=ref_of(resource, metadata),
        resource=resource.plural,
        state=EntryState.CONFIRMED.value,
        source=_reference(it),
        adopted=(metadata.annotations or {}).get(ADOPTED_ANNOTATION) == "true",
    )


async def _relabel(member: Member, it: Content, owner: DeploymentOwner) -> None:
    metadata = it.metadata
    read: dict[str, str] = {"name": metadata.name, "uid": metadata.uid, "resourceVersion": metadata.resource_version}
    if metadata.namespace:
        read["namespace"] = metadata.namespace
    try:
        await member.client.revise(it.resource, {"metadata": read}, {"metadata": {"labels": {OWNER_LABEL: owner.uid}}})
    except NotFoundError:
        return  # deleted meanwhile
    except ConflictError as error:
        raise TransientError(f"cannot adopt {it}: it was changed concurrently; will retry") from error
