"""Decides whether an object is absent; no other code does (docs/architecture.md, Verified absence).

A 404 for a version that is no longer served, from a proxy, or from another cluster behind the same address says nothing
about the object. Those are *unknown*, and unknown never counts as absent.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from unwind.kube.errors import names, status_of

if TYPE_CHECKING:
    from unwind.api.resources import Resource


class Presence(Enum):
    """Whether an object exists."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Sighting(msgspec.Struct, frozen=True):
    """What is known about one object, and how."""

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
    """Interpret the response to a GET of the object that had this uid."""
    if code == 200:
        try:
            shown = msgspec.json.decode(body, type=_Identity)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            shown = _Identity()
        found = shown.metadata.uid
        asked = (resource.kind, namespace if resource.namespaced else "", name)
        if not found or (shown.kind, shown.metadata.namespace, shown.metadata.name) != asked:
            return Sighting(Presence.UNKNOWN, "the response is not the requested object")
        if found == uid:
            return Sighting(Presence.PRESENT, "the server returned it")
        return Sighting(Presence.ABSENT, f"its name belongs to another object now ({found})")
    status = status_of(body)
    if code == 404 and status and status.reason == "NotFound" and names(status.details, resource, name):
        return Sighting(Presence.ABSENT, "the server reports NotFound")
    told = status.message if status else " ".join(body[:100].decode(errors="replace").split())
    return Sighting(Presence.UNKNOWN, f"the server answered {code}: {told}")


def on_cluster(sighting: Sighting, *, expected: str, found: str | None) -> Sighting:
    """Accept an absence only from the cluster that had the object.

    A cluster is identified by the uid of its kube-system namespace; None if that could not be read.
    """
    if not sighting.absent or found == expected:
        return sighting
    if found is None:
        return Sighting(Presence.UNKNOWN, "cannot verify which cluster answered")
    return Sighting(Presence.UNKNOWN, f"another cluster answers at this address ({found}, not {expected})")
