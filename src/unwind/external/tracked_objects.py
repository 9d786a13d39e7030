"""The cached view of objects with an external resource, and the action for each (pure)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.names import MEMO_ANNOTATION, Finalizer
from unwind.kube import decoding

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.decoding import Key, View


class ExternalTarget(NamedTuple):
    """The location of one object."""

    resource: Resource
    key: Key

    def __str__(self) -> str:
        return f"{self.resource.kind}/{self.key}"


class ExternalObject(msgspec.Struct, frozen=True):
    """A cached object: its metadata only."""

    metadata: ObjectMeta


class Act(Enum):
    """The action for an object."""

    CLAIM = "claim"
    """It has an external resource, or soon will: add our finalizer first."""
    DELETE = "delete"
    """It is terminating, and waits for us."""
    NOTHING = "nothing"


def external_view(resource: Resource) -> View[ExternalObject]:
    """The view of a resource's objects: metadata only."""
    partial = decoding.metadata(resource)
    return msgspec.structs.replace(
        decoding.typed(resource, ExternalObject), accept_list=partial.accept_list, accept_watch=partial.accept_watch
    )


def metadata_of(obj: Object) -> ObjectMeta:
    """The metadata of an object."""
    return msgspec.convert(obj["metadata"], ObjectMeta)


def act(metadata: ObjectMeta, operator_finalizers: Collection[str] = ()) -> Act:
    """The action for an object. `operator_finalizers`: those of the operator of its kind.

    No finalizer can be added to a terminating object. One that was terminating when Unwind first saw it still waits for
    us if a finalizer of the operator keeps it; otherwise it is ignored.
    """
    claimed = is_claimed(metadata)
    if metadata.terminating:
        kept = any(name in operator_finalizers for name in metadata.finalizers)
        return Act.DELETE if claimed or kept else Act.NOTHING
    return Act.NOTHING if claimed else Act.CLAIM


def is_claimed(metadata: ObjectMeta) -> bool:
    """Whether an object has our finalizer."""
    return Finalizer.EXTERNAL in metadata.finalizers


def relevant_fields(metadata: ObjectMeta) -> object:
    """The fields that may change the course of a deletion. Unwind's own writes during the deletion, memos and status,
    are excluded: otherwise each run of the chain would trigger the next."""
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
    """The patch that adds our finalizer; None if it is present, or the object is terminating."""
    metadata = metadata_of(obj)
    if act(metadata) is not Act.CLAIM:
        return None
    return {"metadata": {"finalizers": [*metadata.finalizers, Finalizer.EXTERNAL]}}


def release_patch(obj: Object, operator_finalizers: Collection[str] = ()) -> Object | None:
    """The patch that removes our finalizer, these finalizers of the operator, and no others; None if all are absent."""
    finalizers = obj["metadata"].get("finalizers") or []
    left = [name for name in finalizers if name != Finalizer.EXTERNAL and name not in operator_finalizers]
    return {"metadata": {"finalizers": left}} if len(left) < len(finalizers) else None
