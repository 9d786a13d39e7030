"""Creates, updates or adopts one object on a member (docs/architecture.md, Only our own objects)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import ADOPT_ANNOTATION
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.deleters.deletion import pause
from unwind.deploy import owner_marks
from unwind.deploy.owner_marks import Claim, LiveMarks
from unwind.deploy.reports import ObjectOutcome
from unwind.errors import UnwindError
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from unwind.deploy.owner_marks import DeploymentOwner
    from unwind.deploy.placements import PlacedObject
    from unwind.kube.client import Client, Object
    from unwind.kube.errors import ApiError
    from unwind.members.member import Member


# A busy object, such as a Deployment during a rollout, may have changed between read and write.
_TRIES = 4
FOREIGN = (
    "it already exists and is not managed by Unwind; delete it, or adopt it with the annotation"
    f' {ADOPT_ANNOTATION}: "true" on the profile or Work'
)


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one object."""

    outcome: ObjectOutcome
    message: str = ""
    uid: str = ""
    """The uid of the object, if it is ours now."""
    adopted: bool = False
    lost: bool = False
    """Whether the object is managed by another owner, so that it is not in our inventory."""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""
    live: dict[str, Any] | None = None
    """The object as the API server returned it."""


class Adoption(msgspec.Struct, frozen=True):
    """A foreign object that may be adopted. The inventory must record the adoption before the object is changed:
    otherwise, after a crash in between, it would count as created by us and be deleted."""

    uid: str
    before: str
    """Its former owner, for messages."""


async def create(client: Client, placed: PlacedObject, owner: DeploymentOwner) -> Contact | Adoption:
    """Create an object whose entry is intended. The first write is a create, because an apply would also change a
    foreign object."""
    try:
        made = await client.create(placed.resource, owner_marks.with_owner_marks(placed, owner))
    except AlreadyExistsError:
        return await _there_already(client, placed, owner)
    return Contact(outcome=ObjectOutcome.CREATED, uid=made["metadata"]["uid"], live=made)


async def update(
    client: Client, placed: PlacedObject, owner: DeploymentOwner, it: LiveMarks, *, adopted: bool, anew: bool = False
) -> Contact:
    """Update an object that is ours by its recorded uid. `anew`: also if our manifest has not changed."""
    if it.terminating:
        return _terminating(it.uid, adopted=adopted)
    claim = owner_marks.claim(it, owner)
    if claim is Claim.TAKEN:
        return _taken(it)
    body = owner_marks.with_owner_marks(placed, owner, adopted=adopted)
    if claim is Claim.OURS and not anew and it.hash == owner_marks.hash_in(body):
        return Contact(outcome=ObjectOutcome.UNCHANGED, uid=it.uid, adopted=adopted)
    return await _bring(client, placed, owner, uid=it.uid, adopted=adopted)


async def adopt(client: Client, placed: PlacedObject, owner: DeploymentOwner, adoption: Adoption) -> Contact:
    """Update a foreign object whose entry is recorded as adopted."""
    return _saying(
        f"adopted; formerly {adoption.before}", await _bring(client, placed, owner, uid=adoption.uid, adopted=True)
    )


async def _there_already(client: Client, placed: PlacedObject, owner: DeploymentOwner) -> Contact | Adoption:
    ref = placed.ref
    try:
        live = await client.get(placed.resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return Contact(outcome=ObjectOutcome.FAILED, message="it was deleted concurrently; will retry")
    it = owner_marks.seen(live["metadata"])
    claim = owner_marks.claim(it, owner)
    if placed.implied and claim is not Claim.OURS:
        return Contact(outcome=ObjectOutcome.UNCHANGED, lost=True)  # created by another owner, which is sufficient
    if it.terminating:
        return _terminating()
    match claim:
        case Claim.OURS:
            # An earlier attempt was interrupted between the create and the write of the inventory.
            done = await update(client, placed, owner, it, adopted=it.adopted)
            return done if done.live or done.lost else msgspec.structs.replace(done, live=live)
        case Claim.TAKEN:
            return _taken(it)
        case Claim.WON if not it.adopted:
            done = await _bring(client, placed, owner, uid=it.uid, adopted=False)
            return _saying(f"taken over from {it.profile}", done)
        case Claim.FOREIGN if not owner.adopt:
            message = FOREIGN
            return Contact(outcome=ObjectOutcome.CONFLICT, message=message, lost=True)
    return Adoption(it.uid, it.profile or "not managed by Unwind")


async def _bring(client: Client, placed: PlacedObject, owner: DeploymentOwner, *, uid: str, adopted: bool) -> Contact:
    """Apply to the object with this uid, with the resourceVersion at which its owner was read: another profile may take
    it over at any moment, which changes only its owner label."""
    ref = placed.ref
    tries = _TRIES
    while True:
        tries -= 1
        live = await client.get(placed.resource, ref.name, namespace=ref.namespace or None)
        it = owner_marks.seen(live["metadata"])
        claim = owner_marks.claim(it, owner)
        if it.uid != uid or (claim is Claim.WON and it.adopted and not adopted):
            return Contact(outcome=ObjectOutcome.FAILED, message="its owner changed concurrently; will retry")
        if it.terminating:
            return _terminating(uid, adopted=adopted)
        if claim is Claim.TAKEN:
            return _taken(it)
        try:
            done = await _apply(
                client, placed, owner_marks.with_owner_marks(placed, owner, adopted=adopted), live, adopted=adopted
            )
            return msgspec.structs.replace(done, taken_from=it.owner if claim is Claim.WON else "")
        except ConflictError:
            if not tries:
                raise


async def _apply(client: Client, placed: PlacedObject, body: dict[str, Any], live: Object, *, adopted: bool) -> Contact:
    metadata = live["metadata"]
    version = metadata["resourceVersion"]
    # Fields that another manager created stay its own: only what we apply is ours.
    now = version if adopted else await _own(client, placed, live)
    guard = {"uid": metadata["uid"], "resourceVersion": now}
    after = await client.apply(placed.resource, body | {"metadata": body["metadata"] | guard})
    same = after["metadata"]["resourceVersion"] == version
    outcome = ObjectOutcome.UNCHANGED if same else ObjectOutcome.UPDATED
    return Contact(outcome=outcome, uid=metadata["uid"], adopted=adopted, live=after)


async def _own(client: Client, placed: PlacedObject, live: Object) -> str:
    """Make the fields that we created count as applied; returns the resourceVersion afterwards."""
    metadata = live["metadata"]
    version: str = metadata["resourceVersion"]
    fields = owner_marks.applied_fields(metadata.get("managedFields") or [])
    if fields is None:
        return version
    patch: list[Object] = [
        {"op": "replace", "path": "/metadata/managedFields", "value": fields},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
    ]
    ref = placed.ref
    moved = await client.patch(placed.resource, ref.name, patch, namespace=ref.namespace or None)
    after: str = moved["metadata"]["resourceVersion"]
    return after


def _saying(message: str, done: Contact) -> Contact:
    ours = bool(done.uid) and done.outcome is not ObjectOutcome.FAILED
    return msgspec.structs.replace(done, outcome=ObjectOutcome.UPDATED, message=message) if ours else done


def _terminating(uid: str = "", *, adopted: bool = False) -> Contact:
    message = "an object of this name is being deleted; it is created again when that is gone"
    return Contact(outcome=ObjectOutcome.FAILED, message=message, uid=uid, adopted=adopted)


def _taken(it: LiveMarks) -> Contact:
    tier = "" if it.is_work else f" (tier {it.tier})"
    lower = "" if it.is_work else ", or use a lower tier here"
    message = f"managed by {it.profile or 'another profile'}{tier}; remove it from one of them{lower}"
    return Contact(outcome=ObjectOutcome.CONFLICT, message=message, lost=True)


def error_text(placed: PlacedObject, error: ApiError) -> str:
    """The error of the API server, without its message if that could quote a Secret."""
    if placed.confidential:
        return f"request rejected: {error.code} {error.reason}".rstrip()
    return str(error)


# Waiting for CRDs until custom resources can be created.

# The API server needs well under a second. If it takes longer, the whole deployment is retried.
_PATIENCE = 30.0


class NotServedError(UnwindError):
    """A CRD exists, but its resources are not served."""


async def until_established(member: Member, name: str) -> None:
    """Return when the resources of a CRD are served. Raises NotServedError if they are not."""
    clock = member.watches.clock
    ends = clock.monotonic() + _PATIENCE
    while True:
        # Subscribed before the read, so that no change in between is missed.
        changes = await member.watches.changes(CUSTOM_RESOURCE_DEFINITIONS, name=name)
        try:
            conditions = _conditions(await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, name))
            if conditions.get("Established", {}).get("status") == "True":
                return
            refused = conditions.get("NamesAccepted", {})
            if refused.get("status") == "False":
                raise NotServedError(
                    f"the names of CRD {name} are not accepted: {refused.get('message', '')}",
                    remedy="delete the CRD that uses these names, or rename this one",
                )
            left = ends - clock.monotonic()
            if left <= 0:
                raise NotServedError(
                    f"CRD {name} is not established after {_PATIENCE:.0f}s",
                    remedy=f"see its conditions with `kubectl describe crd {name}`",
                )
            await pause(clock, left, changes)
        finally:
            changes.close()


def _conditions(definition: Object) -> dict[str, dict[str, str]]:
    found = (definition.get("status") or {}).get("conditions") or []
    return {item["type"]: item for item in found}
