"""What was deployed as one by a program of its own, and is removed by it: releases of Helm.

The one place where another program sends DELETEs, and by name (docs/architecture.md, Order inside a step). So objects
that a deleter handles are not left to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from unwind.api.annotation_values import DeletePolicy
from unwind.api.names import OWNER_LABEL, SVELTOS_OWNER_ANNOTATION, Reason
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS
from unwind.deleters import builtin
from unwind.deleters.builtin import KEEP_BY_POLICY, annotated
from unwind.deleters.outcomes import Kept
from unwind.deleters.registration import FIRST, Kinds, Registration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.deletion import Deletions
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object
    from unwind.members.member import Member


# Objects that another profile with a lower tier has taken over since the inventory was written.


def keep_taken(owners: Collection[str]) -> Registration:
    """Keeps what carries the mark of an owner that is none of these.

    Who takes an object over changes nothing but its mark: the entry of who lost it stays until that one looks. The mark
    is changed in one write and the DELETE carries the version it was read in, so there is no moment in between.
    """

    async def delete(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        metadata = obj["metadata"]
        owner = (metadata.get("labels") or {}).get(OWNER_LABEL, "")
        if ctx.absent or not owner or owner in owners:
            return await next(ctx, obj)
        annotations = metadata.get("annotations") or {}
        kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
        message = f"it was taken over by {f'{kind} {name}'.strip() or owner}"
        ctx.log.info("kept", why=message)
        return Kept(Reason.NOT_OURS, message, by="unwind")

    return Registration(
        name="keep-taken",
        kinds=(Kinds("*", "*"),),
        delete=delete,
        order=FIRST,
        metadata_only=True,
        about="Keep what another profile has taken over.",
    )


# These are for every object there is, and what they would say is found out without them.
_ASKED_HERE = frozenset([KEEP_BY_POLICY.name, keep_taken(()).name])
HasASay = Callable[["Resource", "Object"], Awaitable[bool]]
"""Whether a deleter has a say in an object's deletion."""


class Releases(Protocol):
    """Who deployed them, and uninstalls them."""

    def release_of(self, entry: Entry) -> ObjectRef | None:
        """The release that an object is of; None if of none."""

    def afterwards(self, entry: Entry) -> bool:
        """Whether it is only known when its release is gone who the object is: hooks are created until the end."""

    def marked(self, entry: Entry, obj: Object) -> bool:
        """Whether an object that is there carries the mark of the release that its entry is of."""

    async def reserve(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        """Have nobody take the release over from this owner any more: it is about to be removed. Returns the uid of
        another owner, if one has done so already."""

    async def uninstall(
        self, member: Member, release: ObjectRef, *, owner: str, entries: Sequence[Entry], has_a_say: HasASay
    ) -> None:
        """Return when the release is gone; raise Again where something is in the way. `entries`: all of it that the
        inventory knows, what is gone included."""

    async def leave(self, member: Member, release: ObjectRef, *, owner: str) -> None:
        """Take the marks of this owner off a release that stays."""


def last_first(releases: Releases, entries: Iterable[Entry]) -> list[ObjectRef]:
    """The releases that these are of, in the reverse of the order in which they were deployed."""
    found: dict[ObjectRef, int] = {}
    for entry in entries:
        if release := releases.release_of(entry):
            found[release] = max(entry.order, found.get(release, 0))
    return sorted(found, key=lambda one: (-found[one], str(one)))


async def has_a_say(deletions: Deletions, resource: Resource, obj: Object) -> bool:
    """Whether a deleter has a say in this: then it goes through its chain, and nobody else deletes it."""
    if resource == PERSISTENT_VOLUME_CLAIMS:
        return True  # nobody could tell afterwards which volume goes with it
    if OWNER_LABEL in (obj["metadata"].get("labels") or {}):
        return True  # what a release brings carries no such mark: somebody of ours has taken it over
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
