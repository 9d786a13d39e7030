"""Whether an object is absent: the one place where that is decided (docs/architecture.md, Verified absence).

Gone is a strong word. A 404 for a version that is no longer served, from a proxy, or from another cluster behind the
same address says nothing about the object; all that is *unknown*, and unknown never lets anything go.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.kube.errors import names, status_of

if TYPE_CHECKING:
    from unwind.api.resources import Resource


class Presence(Enum):
    """What is known of an object."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Sighting(msgspec.Struct, frozen=True):
    """What was seen of one object, and where that knowledge comes from."""

    presence: Presence
    why: str

    @property
    def absent(self) -> bool:
        return self.presence is Presence.ABSENT


class _Metadata(msgspec.Struct):
    uid: str = ""
    name: str = ""
    namespace: str = ""


class _Identity(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def from_answer(code: int, body: bytes, *, resource: Resource, name: str, uid: str, namespace: str = "") -> Sighting:
    """Judge the answer to a GET of the object that had this uid."""
    if code == 200:
        try:
            shown = msgspec.json.decode(body, type=_Identity)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            shown = _Identity()
        found = shown.metadata.uid
        asked = (resource.kind, namespace if resource.namespaced else "", name)
        if not found or (shown.kind, shown.metadata.namespace, shown.metadata.name) != asked:
            return Sighting(Presence.UNKNOWN, "the answer is not the object that was asked for")
        if found == uid:
            return Sighting(Presence.PRESENT, "the server showed it")
        return Sighting(Presence.ABSENT, f"its name belongs to another object now ({found})")
    status = status_of(body)
    if code == 404 and status and status.reason == "NotFound" and names(status.details, resource, name):
        return Sighting(Presence.ABSENT, "the server says that it is not there")
    told = status.message if status else " ".join(body[:100].decode(errors="replace").split())
    return Sighting(Presence.UNKNOWN, f"the server answered {code}: {told}")


def on_cluster(sighting: Sighting, *, expected: str, found: str | None) -> Sighting:
    """Believe in an absence only if the cluster that told it is the one that had the object.

    A cluster is known by the uid of its kube-system namespace; None if it could not be read.
    """
    if not sighting.absent or found == expected:
        return sighting
    if found is None:
        return Sighting(Presence.UNKNOWN, "it could not be verified which cluster answered")
    return Sighting(Presence.UNKNOWN, f"another cluster answers at this address ({found}, not {expected})")
