"""Lists everything in a namespace or cluster, and resolves owner references, from metadata only."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import TransientError
from unwind.kube import decoding
from unwind.kube.decoding import Metadata
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.api.meta import OwnerReference
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery, ServedKind

_AT_ONCE = 16
_SHOWN = 5
_FORBIDDEN = 403


class Content(msgspec.Struct, frozen=True):
    """An object and its metadata."""

    resource: Resource
    metadata: Metadata

    def __str__(self) -> str:
        it = self.metadata
        return f"{self.resource.kind} {it.namespace}/{it.name}" if it.namespace else f"{self.resource.kind} {it.name}"


async def in_namespace(client: Client, discovery: Discovery, namespace: str) -> list[Content]:
    """Everything in a namespace. Raises if part of the API does not answer, because the list would be incomplete."""
    return await _everything(client, discovery, namespace)


async def cluster_contents(
    client: Client, discovery: Discovery, *, labels: str = "", readable: bool = False
) -> list[Content]:
    """Everything in the cluster, or what has these labels (a selector). Expensive: lists every kind.

    `readable`: without the kinds that this client may not list; otherwise raises for them.
    """
    return await _everything(client, discovery, None, labels, readable=readable)


async def _everything(
    client: Client, discovery: Discovery, namespace: str | None, labels: str = "", *, readable: bool = False
) -> list[Content]:
    kinds = listable(await discovery.kinds(anew=True), namespaced=namespace is not None)
    if silent := await discovery.silent():
        where = f"namespace {namespace}" if namespace else "the cluster"
        raise TransientError(
            f"cannot list the contents of {where}: {', '.join(silent)} does not answer",
            remedy="fix or delete its APIService",
        )
    found: list[Content] = []

    async def look(resource: Resource) -> None:
        try:
            found.extend(await of_kind(client, resource, namespace=namespace, labels=labels))
        except ApiError as error:
            if not readable or error.code != _FORBIDDEN:
                raise

    await gather_limited((look(resource) for resource in kinds), limit=_AT_ONCE)
    return sorted(found, key=str)


def listable(kinds: Iterable[ServedKind], *, namespaced: bool) -> list[Resource]:
    """The resources whose objects users care about, each in the preferred version. `namespaced`: only namespaced
    resources."""
    found = {
        (kind.resource.group, kind.resource.plural): kind.resource
        for kind in reversed(list(kinds))
        # A resource that cannot be deleted is a view of another one (such as Pod metrics) and does not block a
        # namespace.
        if kind.verbs >= {"list", "delete"} and (kind.resource.namespaced or not namespaced) and not _passing(kind)
    }
    return list(found.values())


def _passing(kind: ServedKind) -> bool:
    """Whether its objects expire by themselves and belong to no user: there may be thousands of Events."""
    return kind.resource.kind == "Event" and kind.resource.group in ("", "events.k8s.io")


async def of_kind(
    client: Client, resource: Resource, *, namespace: str | None = None, labels: str = "", ahead: bool = False
) -> list[Content]:
    """All objects of a resource, in a namespace or in all namespaces. `labels`: a selector. `ahead`: request each page
    while the one before is decoded."""
    view = decoding.metadata(resource)
    found: list[Content] = []
    pages = client.pages(resource, namespace=namespace, labels=labels, accept=view.accept_list, ahead=ahead)
    async with aclosing(pages):
        async for page in pages:
            found += [Content(resource, view.decode(item)) for item in page.items or ()]
    return found


def defined_by(definition: Object) -> Resource | None:
    """The resource that a CRD defines; None if it serves no version, so its objects cannot be listed."""
    spec = definition["spec"]
    served = [item["name"] for item in spec["versions"] if item["served"]]
    if not served:
        return None
    names, scope = spec["names"], spec["scope"]
    return Resource(spec["group"], served[0], names["plural"], names["kind"], namespaced=scope == "Namespaced")


def made_by_the_server(content: Content) -> bool:
    """Whether Kubernetes creates this object in every namespace."""
    kind, it = content.resource.kind, content.metadata
    return (
        (kind == "Event" and content.resource.group in ("", "events.k8s.io"))
        or (content.resource.group, kind, it.name)
        in (("", "ServiceAccount", "default"), ("", "ConfigMap", "kube-root-ca.crt"))
        or (kind == "Secret" and (it.annotations or {}).get("kubernetes.io/service-account.name") == "default")
    )


def descendants(contents: Iterable[Content], uids: Collection[str]) -> list[Content]:
    """The direct and indirect dependents of these objects."""
    children: dict[str, list[Content]] = {}
    for content in contents:
        for owner in content.metadata.owner_references:
            children.setdefault(owner.uid, []).append(content)
    found: dict[str, Content] = {}
    waiting = list(uids)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.metadata.uid not in found:
                found[child.metadata.uid] = child
                waiting.append(child.metadata.uid)
    return list(found.values())


def belongings(
    contents: Collection[Content], uids: Collection[str], *, kinds: Collection[tuple[str, str]] = ()
) -> list[Content]:
    """The direct and indirect dependents of these objects that no other object owns: the garbage collector keeps a
    dependent while one of its owners exists. `kinds`: see `orphans`."""
    there = {content.metadata.uid for content in contents}
    waiting = {item.metadata.uid: item for item in descendants(contents, uids)}
    gone, found, before = set(uids), list[Content](), -1
    while len(found) != before:
        before = len(found)
        for uid, item in list(waiting.items()):
            owners = item.metadata.owner_references
            if all(owner.uid in gone or _is_gone(owner, there, kinds) for owner in owners):
                gone.add(uid)
                found.append(waiting.pop(uid))
    return found


def orphans(contents: Collection[Content], kinds: Collection[tuple[str, str]]) -> list[Content]:
    """Objects that the garbage collector is about to delete, because all their owners are gone. `kinds` (group, kind):
    those that are listed completely, so that a missing owner is known not to exist."""
    uids = {content.metadata.uid for content in contents}
    return [
        content
        for content in contents
        if content.metadata.owner_references
        and all(_is_gone(owner, uids, kinds) for owner in content.metadata.owner_references)
    ]


def _is_gone(owner: OwnerReference, there: Collection[str], kinds: Collection[tuple[str, str]]) -> bool:
    """Whether an owner is known not to exist (pure)."""
    return owner.uid not in there and (owner.api_version.rpartition("/")[0], owner.kind) in kinds


def first_names(found: Collection[Content], *, shown: int = _SHOWN) -> str:
    """The first few objects by name, for display."""
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(sorted(str(content) for content in found)[:shown]) + more
