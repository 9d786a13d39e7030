"""What is seen of objects whose kind has an external end, and what is to be done about each (pure)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.names import MEMO_ANNOTATION, Finalizer
from unwind.kube import decoding

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.decoding import Key, View


class ExternalTarget(NamedTuple):
    """One object's place."""

    resource: Resource
    key: Key

    def __str__(self) -> str:
        return f"{self.resource.kind}/{self.key}"


class ExternalObject(msgspec.Struct, frozen=True):
    """An object as the cache has it: its metadata only."""

    metadata: ObjectMeta


class Act(Enum):
    """What is to be done about an object."""

    CLAIM = "claim"
    """It stands for something, or soon will: our finalizer has to be on it before."""
    DELETE = "delete"
    """It is to go, and waits for us."""
    NOTHING = "nothing"


def view(resource: Resource) -> View[ExternalObject]:
    """Objects of a resource, of which the server sends the metadata only."""
    partial = decoding.metadata(resource)
    return msgspec.structs.replace(
        decoding.typed(resource, ExternalObject), accept_list=partial.accept_list, accept_watch=partial.accept_watch
    )


def metadata_of(obj: Object) -> ObjectMeta:
    """The metadata of an object as it was read."""
    return msgspec.convert(obj["metadata"], ObjectMeta)


def act(metadata: ObjectMeta) -> Act:
    """What is to be done about an object. One that is going and never was claimed is not ours."""
    claimed = Finalizer.EXTERNAL in metadata.finalizers
    if metadata.terminating:
        return Act.DELETE if claimed else Act.NOTHING
    return Act.NOTHING if claimed else Act.CLAIM


def matters(metadata: ObjectMeta) -> object:
    """What may change the way of a deletion. What Unwind itself writes while it deletes, memos and status, is not among
    it: otherwise each entry into the chain would be the reason for the next."""
    annotations = {key: value for key, value in metadata.annotations.items() if not key.startswith(MEMO_ANNOTATION)}
    return (
        metadata.uid,
        metadata.terminating,
        metadata.finalizers,
        annotations,
        metadata.labels,
        metadata.generation,
    )


def claimed(obj: Object) -> Object | None:
    """The patch that puts our finalizer on an object; None if it is on, or it is too late for it."""
    metadata = metadata_of(obj)
    if act(metadata) is not Act.CLAIM:
        return None
    return {"metadata": {"finalizers": [*metadata.finalizers, Finalizer.EXTERNAL]}}


def released(obj: Object) -> Object | None:
    """The patch that takes our finalizer off, and nobody else's; None if it is off."""
    finalizers = obj["metadata"].get("finalizers") or []
    if Finalizer.EXTERNAL not in finalizers:
        return None
    return {"metadata": {"finalizers": [finalizer for finalizer in finalizers if finalizer != Finalizer.EXTERNAL]}}
