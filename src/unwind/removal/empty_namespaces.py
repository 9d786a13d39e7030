"""Empty Namespaces: for the order, one that only waits for Kubernetes to finalize it counts as removed.

The namespace controller waits five seconds before it finalizes any Namespace, even an empty one (docs/architecture.md,
Order of steps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import NAMESPACES
from unwind.deleters.outcomes import Again
from unwind.kube.errors import NotFoundError
from unwind.members.contents import first_names, in_namespace
from unwind.members.member import RECENT
from unwind.removal import foreign_content
from unwind.why.finalizers import NAMESPACE_FINALIZER

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Object
    from unwind.kube.watches import Changes
    from unwind.members.contents import Content
    from unwind.members.member import Member

# What Kubernetes' own controllers put into every Namespace. Events are never listed: they expire by themselves.
_DEFAULT_CONTENT = frozenset([("", "ConfigMap", "kube-root-ca.crt"), ("", "ServiceAccount", "default")])
# Only a fallback: watches report the changes that are waited for.
_LOOK_AGAIN = 600.0


def only_waits_for_kubernetes(namespace: Object) -> bool:
    """Whether a Namespace is being deleted and has no finalizer but Kubernetes' own (pure)."""
    metadata, spec = namespace["metadata"], namespace.get("spec") or {}
    own = set(spec.get("finalizers") or ()) <= {NAMESPACE_FINALIZER}
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers") and own


def is_default_content(content: Content) -> bool:
    """Whether Kubernetes' own controllers created this object, as in every Namespace (pure). With a finalizer it holds
    the Namespace like any other object."""
    resource, metadata = content.resource, content.metadata
    default = (resource.group, resource.kind, metadata.name) in _DEFAULT_CONTENT
    return default and not metadata.finalizers and not metadata.owner_references


def reports_content(namespace: Object) -> bool:
    """Whether the namespace controller reports content that it could not delete (pure)."""
    conditions = (namespace.get("status") or {}).get("conditions") or ()
    return any(item["type"].startswith("Namespace") and item["status"] == "True" for item in conditions)


async def until_empty(member: Member, ref: ObjectRef) -> None:
    """Return if this Namespace is empty and only waits for Kubernetes; raise Again while that is not so. An error
    means unknown.

    The lists begin after a read that shows the deletion. An API server that has not seen it yet may accept a new object
    for a moment: `until_refilled` finds it.
    """
    changes = await member.watches.changes(NAMESPACES, namespace="", name=ref.name)
    found = await _read(member, ref, changes)
    if not only_waits_for_kubernetes(found):
        raise Again(f"waiting until {ref} is empty", until=changes, after=_LOOK_AGAIN)
    changes.close()
    left = await _content(member, ref)
    if left:
        absences = await foreign_content.absences(member, left)
        raise Again(f"waiting until {ref} is empty: it contains {first_names(left)}", until=absences, after=_LOOK_AGAIN)
    await member.verify(within=RECENT)


async def until_refilled(member: Member, ref: ObjectRef, known: Collection[Content]) -> list[Content]:
    """The content of a Namespace that was empty before, as soon as it differs from `known`; raises Again until then.

    Lists only if the namespace controller reports content that it could not delete: it deletes everything else.
    """
    changes = await member.watches.changes(NAMESPACES, namespace="", name=ref.name)
    found = await _read(member, ref, changes)
    try:
        late = await _content(member, ref) if reports_content(found) else []
    except BaseException:
        changes.close()
        raise
    if {item.metadata.uid for item in late} == {item.metadata.uid for item in known}:
        raise Again(f"{ref} is being deleted", until=changes, after=_LOOK_AGAIN)
    changes.close()
    return late


async def _read(member: Member, ref: ObjectRef, changes: Changes) -> Object:
    """The Namespace. Raises Again if it is gone: its deletion verifies that."""
    try:
        found = await member.client.get(NAMESPACES, ref.name)
        if found["metadata"]["uid"] == ref.uid:
            return found
    except NotFoundError:
        pass
    except BaseException:
        changes.close()
        raise
    raise Again(f"{ref} is gone", until=changes, after=_LOOK_AGAIN)


async def _content(member: Member, ref: ObjectRef) -> list[Content]:
    """What is in the Namespace besides the default content. Raises if part of the API does not answer."""
    async with member.listing:
        everything = await in_namespace(member.client, member.discovery, ref.name)
    return [content for content in everything if not is_default_content(content)]
