"""Helpers that convert API objects for a diagnosis."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from unwind.diagnosing.answers import Thing

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.removing.asking.places import Place


async def thing_of(place: Place, *, group: str, kind: str, name: str, namespace: str = "", uid: str = "") -> Thing:
    """An object by its kind, with its name in commands. Raises UnwindError if the kind is not served."""
    resource = await place.discovery.resource(kind, group=group)
    return Thing(resource=resource, name=name, namespace=namespace if resource.namespaced else "", uid=uid)


def as_thing(resource: Resource, obj: Object) -> Thing:
    """An object that was read."""
    meta = obj["metadata"]
    return Thing(resource=resource, name=meta["name"], namespace=meta.get("namespace", ""), uid=meta["uid"])


def moment(text: str | None) -> datetime | None:
    """A timestamp of the API; None if it is invalid."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None  # an invalid timestamp must not prevent an answer
