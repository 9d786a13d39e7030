"""Helm releases in a removal: in which order they are uninstalled, and which of their objects the chain deletes first.

Helm deployed these objects as a unit, and they are uninstalled as one, with hooks. The uninstall does not run the chain
of deleters (docs/architecture.md, Order inside a step). So objects that a deleter handles are not left to it. A removal
knows only the protocol `Releases`; `deploy/helm_uninstall.py` implements it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from unwind.api.annotation_values import DeletePolicy
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS
from unwind.deleters import builtin
from unwind.deleters.builtin import KEEP_BY_POLICY, annotated
from unwind.protection import deleter as protection
from unwind.removal.takeovers import keep_taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry
    from unwind.deleters.deletion import Deletions
    from unwind.kube.client import Object
    from unwind.members.member import Member


# These apply to every object, and their answers are known without calling them.
_ASKED_HERE = frozenset([KEEP_BY_POLICY.name, keep_taken(()).name, protection.NAME])
HasASay = Callable[["Resource", "Object"], Awaitable[bool]]
"""Whether a deleter handles an object's deletion."""


class Releases(Protocol):
    """Uninstalls releases."""

    def release_of(self, entry: Entry) -> ObjectRef | None:
        """The release of an object; None if it belongs to none."""

    def afterwards(self, entry: Entry) -> bool:
        """Whether the object's uid is known only after the uninstall: hooks are created until then."""

    def marked(self, entry: Entry, obj: Object) -> bool:
        """Whether an existing object has the labels of the release in its entry."""

    def why_kept(self, entry: Entry) -> str:
        """Why an object of a release stays after the uninstall; empty if that is not known."""

    async def reserve(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        """Prevent other owners from taking the release over, because it is about to be removed. Returns the uid of the
        other owner if one has taken it over already, else an empty string."""

    async def taken_by(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        """The uid of the other owner that has taken the release over; else an empty string. Only reads."""

    async def uninstall(
        self, member: Member, release: ObjectRef, *, owner: str, entries: Sequence[Entry], has_a_say: HasASay
    ) -> None:
        """Return when the release is uninstalled; raise Again if it is blocked. `entries`: all inventory entries of the
        release, including objects that are removed or kept."""

    async def leave(self, member: Member, release: ObjectRef, *, owner: str) -> None:
        """Remove this owner's labels and annotations from a release that stays."""


def last_first(releases: Releases, entries: Iterable[Entry]) -> list[ObjectRef]:
    """The releases of these entries, in the reverse of the order in which they were deployed."""
    found: dict[ObjectRef, int] = {}
    for entry in entries:
        if release := releases.release_of(entry):
            found[release] = max(entry.order, found.get(release, 0))
    return sorted(found, key=lambda ref: (-found[ref], str(ref)))


async def has_a_say(deletions: Deletions, resource: Resource, obj: Object) -> bool:
    """Whether a deleter handles this object: then it is deleted by its chain, and not by the uninstall."""
    if resource == PERSISTENT_VOLUME_CLAIMS:
        return True  # after its deletion, its volume would be unknown
    if OWNER_LABEL in (obj["metadata"].get("labels") or {}):
        return True  # objects of a release have no owner label: a profile has taken this one over
    if protection.labelled(obj["metadata"].get("labels")):
        return True  # whether it may be deleted is decided when its turn comes, and its DELETE has preconditions
    if await deletions.registry.external(resource):
        return True  # its external resource is deleted first
    for link in await deletions.registry.deleters(resource):
        if link.name not in _ASKED_HERE and (link.when is None or link.when(_read(link.model, obj))):
            return True
    namespace = obj["metadata"].get("namespace")
    around = await deletions.resolver.namespace(namespace) if namespace else None
    said = builtin.effective_policy(
        annotated(obj), namespace=annotated(around) if around else None, default=deletions.policy
    ).policy
    return said is not DeletePolicy.MANAGE


def _read(model: type | None, obj: Object) -> Any:
    return obj if model is None else msgspec.convert(obj, model, strict=False)
