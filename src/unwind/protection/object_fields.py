"""Decodes the fields of objects that protection needs, from reviews, lists and watches (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection.rules import Denied, Subject, by_itself

if TYPE_CHECKING:
    from unwind.protection.protected_kinds import ProtectedKind

NULL = msgspec.Raw(b"null")


# Only this label is decoded: an object may have many, and this runs for every DELETE.
class _Labels(msgspec.Struct):
    protection: str | None = msgspec.field(default=None, name=DELETE_PROTECTION_LABEL)


class _Owner(msgspec.Struct):
    controller: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: _Labels | None = None
    owner_references: list[_Owner] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    spec: msgspec.Raw = NULL
    status: msgspec.Raw = NULL


class _Names(msgspec.Struct):
    plural: str = ""
    kind: str = ""


class _Version(msgspec.Struct):
    name: str
    served: bool = True
    storage: bool = False


class _DefinitionSpec(msgspec.Struct):
    group: str = ""
    names: _Names = msgspec.field(default_factory=_Names)
    scope: str = "Namespaced"
    versions: list[_Version] | None = None
    version: str = ""
    """The field of v1beta1 for a single version."""


class _Definition(msgspec.Struct):
    spec: _DefinitionSpec


class LabelledObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object and its protection."""

    ref: ObjectRef
    version: str
    """Its resourceVersion."""
    subject: Subject

    @property
    def controlled(self) -> bool:
        """Whether it has a controller: then its labels come from a template."""
        return self.subject.controlled

    @property
    def guarded(self) -> bool:
        """Whether the namespace controller could not delete it."""
        return isinstance(by_itself(msgspec.structs.replace(self.subject, by_controller=True)), Denied)


class Defined(msgspec.Struct, frozen=True, kw_only=True):
    """The custom resources that a CRD defines."""

    group: str
    plural: str
    kind: str
    namespaced: bool
    versions: tuple[str, ...]
    """The served versions, the stored one first: it needs no conversion."""


_object = msgspec.json.Decoder(_Object).decode
_definition = msgspec.json.Decoder(_Definition).decode
_any = msgspec.json.Decoder().decode


def read_subject(
    body: msgspec.Raw | bytes, kind: ProtectedKind, *, version: str = "", by_controller: bool = False
) -> LabelledObject:
    """The decoded object. Raises ValueError if the body is not an object. `by_controller`: whether one of Kubernetes'
    own controllers deletes it."""
    try:
        obj = _object(body)
        meta = obj.metadata
        label = meta.labels.protection if meta.labels else None
        # Most have no label, or Always: then there is nothing to count.
        counted = kind.count if label == DeleteProtection.CASCADING else None
        subject = Subject(
            kind=kind,
            label=label,
            terminating=bool(meta.deletion_timestamp),
            count=_count(obj, kind) if counted else None,
            controlled=any(owner.controller for owner in meta.owner_references or ()),
            by_controller=by_controller,
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return LabelledObject(ref=ref_of(kind.served(version), meta), version=meta.resource_version, subject=subject)


def definition(body: msgspec.Raw | bytes) -> Defined:
    """What a CRD of either version defines. Raises ValueError if the body is not a CRD."""
    try:
        spec = _definition(body).spec
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    listed = spec.versions or ([_Version(spec.version)] if spec.version else [])
    served = sorted((item for item in listed if item.served), key=lambda one: not one.storage)
    return Defined(
        group=spec.group,
        plural=spec.names.plural,
        kind=spec.names.kind,
        namespaced=spec.scope != "Cluster",
        versions=tuple(item.name for item in served),
    )


def _count(obj: _Object, kind: ProtectedKind) -> int | None:
    """The number of dependents; None if unreadable, which protects."""
    assert kind.count  # noqa: S101 - for the type checker
    outer = kind.count.path[0]
    try:
        return kind.count.of({outer: _any(obj.spec if outer == "spec" else obj.status)})
    except ValueError:
        return None
