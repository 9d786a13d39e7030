"""PersistentVolumeClaims of StatefulSets, which mostly have no owner reference, and the volumes of claims."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, named_ref
from unwind.api.names import VOLUMES_ANNOTATION, Reason
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STATEFUL_SETS
from unwind.api.unwind import Entry, EntryState
from unwind.deleters.outcomes import Again, TransientError
from unwind.inventory.inventories import OWN
from unwind.kube.absence import Presence
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.client import Object
    from unwind.members.member import Member


SOURCE = f"{STATEFUL_SETS.kind} "
"""The prefix of `source` in a claim's entry; the name of the StatefulSet follows."""
_NAMED = 20
REMEMBERED = f"{OWN}volume"
"""The memo key of the volume in a claim's entry: once the claim is gone, its volume is unknown."""


class Volume(msgspec.Struct, frozen=True):
    """A volume that is deleted with its claim."""

    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.name}/{self.uid}"

    @classmethod
    def parse(cls, text: str) -> Volume:
        name, _, uid = text.partition("/")
        return cls(name, uid)


async def of_set(
    member: Member, stateful_set: Object, *, order: int, policy: VolumePolicy = VolumePolicy.RETAIN
) -> list[Entry]:
    """The claims of a StatefulSet as inventory entries: nothing is deleted that is not in it. Those that stay are
    `kept`."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    templates = [template["metadata"]["name"] for template in spec.get("volumeClaimTemplates") or ()]
    if not templates:
        return []
    made = await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=metadata["namespace"])
    return [
        Entry(
            object=named_ref(
                PERSISTENT_VOLUME_CLAIMS,
                item["metadata"]["name"],
                namespace=metadata["namespace"],
                uid=item["metadata"]["uid"],
            ),
            resource=PERSISTENT_VOLUME_CLAIMS.plural,
            state=EntryState.CONFIRMED.value,
            source=f"{SOURCE}{metadata['name']}",
            order=order,
            kept=not goes(item, stateful_set, policy),
        )
        for item in made
        if _named_after(item, templates, metadata["name"])
    ]


def known(policy: VolumePolicy | Unknown) -> VolumePolicy:
    """The policy. Raises TransientError if it is unknown: then nothing is deleted."""
    if isinstance(policy, Unknown):
        raise TransientError(
            f"nothing is deleted: annotation {VOLUMES_ANNOTATION}: {policy}",
            reason=Reason.UNKNOWN_VALUE,
            remedy="correct the annotation",
        )
    return policy


def goes(claim: Object, stateful_set: Object, policy: VolumePolicy) -> bool:
    """Whether a claim of a StatefulSet is deleted after it (pure).

    The API server sets the default `whenDeleted: Retain`, so only `Delete` is a user's choice. It applies to the claims
    that the StatefulSet owns then: the garbage collector deletes these. A claim for a replica that never existed has
    the name of a claim of the StatefulSet, but is not owned by it.
    """
    if policy is VolumePolicy.DELETE and _labelled(claim, stateful_set["spec"]["selector"]):
        return True
    retention = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    owners = [reference.get("uid") for reference in claim["metadata"].get("ownerReferences") or ()]
    return retention.get("whenDeleted") == "Delete" and stateful_set["metadata"]["uid"] in owners


def is_retained(entry: Entry) -> bool:
    """Whether an entry is of a claim that stays after its StatefulSet (pure)."""
    return entry.kept and entry.source.startswith(SOURCE)


def why_retained(entry: Entry) -> str:
    """Why such a claim stays (pure)."""
    return (
        f"a claim of {entry.source} is deleted only with {VOLUMES_ANNOTATION}: Delete, if it has the labels of the"
        " StatefulSet, or if the StatefulSet owns it (persistentVolumeClaimRetentionPolicy.whenDeleted: Delete)"
    )


def why_not_deployed(entry: Entry) -> str:
    """Why such a claim stays if its StatefulSet is deleted by its deployer (pure)."""
    return (
        f"a claim of {entry.source} is not deployed with it, and is deleted only if the StatefulSet owns it"
        " (persistentVolumeClaimRetentionPolicy.whenDeleted: Delete)"
    )


def of_kept_sets(claims: Iterable[Entry], kept: Iterable[ObjectRef]) -> set[str]:
    """The uids of those claims whose StatefulSet is among the kept objects: they stay, too (pure)."""
    sets = {(ref.namespace, f"{SOURCE}{ref.name}") for ref in kept if ref.kind == STATEFUL_SETS.kind}
    return {entry.object.uid for entry in claims if (entry.object.namespace, entry.source) in sets}


def retained_warnings(entries: Iterable[Entry]) -> list[str]:
    """The claims among these entries that stay, for a plan: one line per StatefulSet (pure).

    A Teardown has to fit into one object, so at most `_NAMED` StatefulSets and `_NAMED` claims of each are named. The
    ledger names every claim.
    """
    sets: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if is_retained(entry):
            sets.setdefault((entry.object.namespace, entry.source), []).append(entry)
    lines: list[str] = []
    for _, some in sorted(sets.items())[:_NAMED]:
        names = sorted(str(entry.object) for entry in some)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"{', '.join(names[:_NAMED])}{more} stays: {why_retained(some[0])}")
    if len(sets) > _NAMED:
        lines.append(f"claims of {len(sets) - _NAMED} more StatefulSets stay")
    return lines


def _named_after(claim: Object, templates: Iterable[str], name: str) -> bool:
    """Whether a StatefulSet of this name would use a claim: the controller matches only the name."""
    return any(
        re.fullmatch(rf"{re.escape(template)}-{re.escape(name)}-[0-9]+", claim["metadata"]["name"])
        for template in templates
    )


def _labelled(claim: Object, selector: Any) -> bool:
    """Whether a claim has the labels that a StatefulSet sets on its claims."""
    labels = claim["metadata"].get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items())


async def volume_of(member: Member, claim: ObjectRef) -> Volume | None:
    """The volume that is deleted with its claim; None if there is none, or it stays."""
    try:
        found = await member.client.get(PERSISTENT_VOLUME_CLAIMS, claim.name, namespace=claim.namespace)
        if found["metadata"]["uid"] != claim.uid or not found["spec"].get("volumeName"):
            return None
        volume = await member.client.get(PERSISTENT_VOLUMES, found["spec"]["volumeName"])
    except NotFoundError:
        return None
    if volume["spec"].get("persistentVolumeReclaimPolicy") != "Delete":
        return None
    return Volume(volume["metadata"]["name"], volume["metadata"]["uid"])


async def until_volume_gone(member: Member, volume: Volume) -> None:
    """Return if a volume is absent; raise Again while its provisioner deletes it."""
    absence = await member.watches.absence(PERSISTENT_VOLUMES, name=volume.name, uid=volume.uid)
    seen = await member.client.sighting(PERSISTENT_VOLUMES, volume.name, uid=volume.uid, cluster=member.system_uid)
    if seen.absent or absence.happened:
        absence.close()
        return
    if seen.presence is Presence.UNKNOWN:
        absence.close()
        raise TransientError(
            f"cannot verify that PersistentVolume {volume.name} is absent: {seen.why}", remedy="will retry"
        )
    raise Again(
        f"PersistentVolume {volume.name} waits for its provisioner; see `kubectl describe pv {volume.name}`",
        until=absence,
    )
