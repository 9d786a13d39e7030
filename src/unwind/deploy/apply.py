"""One object on the member: created, updated, or left to its owner (docs/architecture.md, Only our own objects)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

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


# A busy object, such as a Deployment while it rolls out, may have changed between looking and writing.
_TRIES = 4


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    outcome: ObjectOutcome
    message: str = ""
    uid: str = ""
    """The object's, if it is ours now."""
    adopted: bool = False
    lost: bool = False
    """Whether it is somebody else's, so that it has no place in our inventory."""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""
    live: dict[str, Any] | None = None
    """The object as the server has just told it."""


class Adoption(msgspec.Struct, frozen=True):
    """Somebody else's object that may be adopted. The inventory has to say so before the object does: who dies in
    between would otherwise take it for an object that we made, and delete it."""

    uid: str
    before: str
    """For people: whose it was."""


async def create(client: Client, placed: PlacedObject, owner: DeploymentOwner) -> Contact | Adoption:
    """Make an object, whose entry says that it is intended. First contact is a create: an apply would succeed over
    somebody else's object, too."""
    try:
        made = await client.create(placed.resource, owner_marks.marked(placed, owner))
    except AlreadyExistsError:
        return await _there_already(client, placed, owner)
    return Contact(outcome=ObjectOutcome.CREATED, uid=made["metadata"]["uid"], live=made)


async def update(
    client: Client, placed: PlacedObject, owner: DeploymentOwner, it: LiveMarks, *, adopted: bool, anew: bool = False
) -> Contact:
    """Bring an object up to date that is ours by its recorded uid. `anew`: also if nothing has changed on our side."""
    if it.terminating:
        return _terminating(it.uid, adopted=adopted)
    claim = owner_marks.claim(it, owner)
    if claim is Claim.TAKEN:
        return _taken(it)
    body = owner_marks.marked(placed, owner, adopted=adopted)
    if claim is Claim.OURS and not anew and it.hash == owner_marks.hash_in(body):
        return Contact(outcome=ObjectOutcome.UNCHANGED, uid=it.uid, adopted=adopted)
    return await _bring(client, placed, owner, uid=it.uid, adopted=adopted)


async def adopt(client: Client, placed: PlacedObject, owner: DeploymentOwner, adoption: Adoption) -> Contact:
    """Update somebody else's object, whose entry says that it is adopted."""
    return _saying(
        f"adopted; it was {adoption.before}", await _bring(client, placed, owner, uid=adoption.uid, adopted=True)
    )


async def _there_already(client: Client, placed: PlacedObject, owner: DeploymentOwner) -> Contact | Adoption:
    ref = placed.ref
    try:
        live = await client.get(placed.resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return Contact(outcome=ObjectOutcome.FAILED, message="it was there, and went while it was looked at")
    it = owner_marks.seen(live["metadata"])
    claim = owner_marks.claim(it, owner)
    if placed.implied and claim is not Claim.OURS:
        return Contact(outcome=ObjectOutcome.UNCHANGED, lost=True)  # somebody else has made it, which is as good
    if it.terminating:
        return _terminating()
    match claim:
        case Claim.OURS:
            # We died, or had no answer, between making it and writing that down.
            done = await update(client, placed, owner, it, adopted=it.adopted)
            return done if done.live or done.lost else msgspec.structs.replace(done, live=live)
        case Claim.TAKEN:
            return _taken(it)
        case Claim.WON if not it.adopted:
            done = await _bring(client, placed, owner, uid=it.uid, adopted=False)
            return _saying(f"taken over from {it.profile}", done)
        case Claim.FOREIGN if not owner.adopt:
            message = "it was there before, and is somebody else's"
            return Contact(outcome=ObjectOutcome.CONFLICT, message=message, lost=True)
    return Adoption(it.uid, it.profile or "somebody else's")


async def _bring(client: Client, placed: PlacedObject, owner: DeploymentOwner, *, uid: str, adopted: bool) -> Contact:
    """Apply to the object with this uid, only as it was when we looked whose it is: another profile may take it over
    at any moment, and nothing but its mark says so."""
    ref = placed.ref
    tries = _TRIES
    while True:
        tries -= 1
        live = await client.get(placed.resource, ref.name, namespace=ref.namespace or None)
        it = owner_marks.seen(live["metadata"])
        claim = owner_marks.claim(it, owner)
        if it.uid != uid or (claim is Claim.WON and it.adopted and not adopted):
            return Contact(outcome=ObjectOutcome.FAILED, message="it changed hands while it was looked at")
        if it.terminating:
            return _terminating(uid, adopted=adopted)
        if claim is Claim.TAKEN:
            return _taken(it)
        try:
            done = await _apply(
                client, placed, owner_marks.marked(placed, owner, adopted=adopted), live, adopted=adopted
            )
            return msgspec.structs.replace(done, taken_from=it.owner if claim is Claim.WON else "")
        except ConflictError:
            if not tries:
                raise


async def _apply(client: Client, placed: PlacedObject, body: dict[str, Any], live: Object, *, adopted: bool) -> Contact:
    metadata = live["metadata"]
    version = metadata["resourceVersion"]
    # What somebody else has created stays theirs: of that, only what we apply is ours.
    now = version if adopted else await _own(client, placed, live)
    guard = {"uid": metadata["uid"], "resourceVersion": now}
    after = await client.apply(placed.resource, body | {"metadata": body["metadata"] | guard})
    same = after["metadata"]["resourceVersion"] == version
    outcome = ObjectOutcome.UNCHANGED if same else ObjectOutcome.UPDATED
    return Contact(outcome=outcome, uid=metadata["uid"], adopted=adopted, live=after)


async def _own(client: Client, placed: PlacedObject, live: Object) -> str:
    """Have all that we set counted as applied; returns the object's version afterwards."""
    metadata = live["metadata"]
    version: str = metadata["resourceVersion"]
    fields = owner_marks.applied(metadata.get("managedFields") or [])
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
    message = "an object of this name is being deleted; when it is gone, it is made anew"
    return Contact(outcome=ObjectOutcome.FAILED, message=message, uid=uid, adopted=adopted)


def _taken(it: LiveMarks) -> Contact:
    tier = "" if it.is_work else f", whose tier is {it.tier}"
    message = f"it belongs to {it.profile or 'another profile'}{tier}"
    return Contact(outcome=ObjectOutcome.CONFLICT, message=message, lost=True)


def told(placed: PlacedObject, error: ApiError) -> str:
    """What the API server said; not in its words where they could quote a Secret."""
    if placed.confidential:
        return f"the API server refused it: {error.code} {error.reason}".rstrip()
    return str(error)


# CRDs, waited for until their resources can be made.

# The API server needs well under a second. What takes longer is tried again with the whole deployment.
_PATIENCE = 30.0


class NotServedError(UnwindError):
    """A CRD is there, and its resources are not served."""


async def until_established(member: Member, name: str) -> None:
    """Return when the resources of a CRD are served. Raises NotServedError where they are not going to be."""
    clock = member.watches.clock
    ends = clock.monotonic() + _PATIENCE
    while True:
        # Asked for before looking, so that no change in between is missed.
        changes = await member.watches.changes(CUSTOM_RESOURCE_DEFINITIONS, name=name)
        try:
            conditions = _conditions(await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, name))
            if conditions.get("Established", {}).get("status") == "True":
                return
            refused = conditions.get("NamesAccepted", {})
            if refused.get("status") == "False":
                raise NotServedError(f"its names are not accepted: {refused.get('message', '')}")
            left = ends - clock.monotonic()
            if left <= 0:
                raise NotServedError(f"its resources are not served after {_PATIENCE:.0f} s")
            await pause(clock, left, changes)
        finally:
            changes.close()


def _conditions(definition: Object) -> dict[str, dict[str, str]]:
    found = (definition.get("status") or {}).get("conditions") or []
    return {item["type"]: item for item in found}
