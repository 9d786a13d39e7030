"""Volumes: a StatefulSet's claims are owned by nobody, and a claim's volume has a part in the cloud."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from unwind.api.unwind import Entry, EntryState
from unwind.deleting.outcomes import Again, TransientError
from unwind.kube.absence import Presence
from unwind.kube.errors import NotFoundError
from unwind.removing.inventories import OWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.fleet.member import Member
    from unwind.kube.client import Object


REMEMBERED = f"{OWN}volume"
"""What a claim's entry remembers: when the claim is gone, nobody can tell any more which volume it had."""


class Volume(msgspec.Struct, frozen=True):
    """A volume that goes with its claim."""

    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.name}/{self.uid}"

    @classmethod
    def parse(cls, text: str) -> Volume:
        name, _, uid = text.partition("/")
        return cls(name, uid)


async def of_set(member: Member, stateful_set: Object, *, order: int) -> list[Entry]:
    """The claims that a StatefulSet made, as entries for the inventory: nothing goes that is not in it."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    templates = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates") or ()]
    if not templates:
        return []
    made = await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=metadata["namespace"])
    return [
        Entry(
            object=ObjectRef(
                version="v1",
                kind=PERSISTENT_VOLUME_CLAIMS.kind,
                namespace=metadata["namespace"],
                name=one["metadata"]["name"],
                uid=one["metadata"]["uid"],
            ),
            resource=PERSISTENT_VOLUME_CLAIMS.plural,
            state=EntryState.CONFIRMED.value,
            source=f"StatefulSet {metadata['name']}",
            order=order,
        )
        for one in made
        if _made_by(one, templates, metadata["name"], spec["selector"])
    ]


def _made_by(claim: Object, templates: Iterable[str], name: str, selector: Any) -> bool:
    """Whether a claim is of a StatefulSet's making: by its name, and by the labels that it gives to its own."""
    labels = claim["metadata"].get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return any(
        re.fullmatch(rf"{re.escape(template)}-{re.escape(name)}-[0-9]+", claim["metadata"]["name"])
        for template in templates
    )


async def volume_of(member: Member, claim: ObjectRef) -> Volume | None:
    """The volume that goes when its claim does; None if there is none, or it stays."""
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


async def until_gone(member: Member, volume: Volume) -> None:
    """Return if a volume is absent; raise Again while its provisioner is at it."""
    absence = await member.watches.absence(PERSISTENT_VOLUMES, name=volume.name, uid=volume.uid)
    seen = await member.client.sighting(PERSISTENT_VOLUMES, volume.name, uid=volume.uid, cluster=member.system_uid)
    if seen.absent or absence.happened:
        absence.close()
        return
    if seen.presence is Presence.UNKNOWN:
        absence.close()
        raise TransientError(f"it is not known whether PersistentVolume {volume.name} is still there: {seen.why}")
    raise Again(f"PersistentVolume {volume.name} waits for its provisioner", until=absence)
