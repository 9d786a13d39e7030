"""What all objects have in common: metadata, conditions, references to one another."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from unwind.api.fields import ATOMIC, Model, doc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.resources import Resource


class OwnerReference(Model, frozen=True, kw_only=True):
    """An object that another belongs to."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Model, frozen=True, kw_only=True):
    """The metadata that Unwind reads. managedFields are not among it: they are the larger part of most objects."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None


# Written with all that metav1.Condition requires, empty or not: the CRDs of others insist on it.
class Condition(Model, frozen=True, kw_only=True, omit_defaults=False):
    """One thing that can be said of an object, since when, and why."""

    type: Annotated[str, doc("What is said.", required=True)] = ""
    status: Annotated[
        str, doc("Whether it holds: True, False or Unknown.", required=True, enum=["True", "False", "Unknown"])
    ] = "Unknown"
    reason: Annotated[str, doc("Why, as one word.")] = ""
    message: Annotated[str, doc("Why, for people.")] = ""
    last_transition_time: Annotated[datetime | None, doc("When the status last changed.")] = None
    observed_generation: Annotated[
        int | msgspec.UnsetType, doc("The generation of the object that was looked at.", minimum=0)
    ] = msgspec.UNSET


class ObjectRef(Model, frozen=True, kw_only=True):
    """Exactly one object: not any other that has, had or will have its name."""

    group: Annotated[str, doc("The API group; empty for the core group.")] = ""
    version: Annotated[str, doc("The version it was last seen in.")] = ""
    kind: Annotated[str, doc("The kind.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("The namespace; empty for an object of the whole cluster.")] = ""
    name: Annotated[str, doc("The name.", required=True, minLength=1, maxLength=253)] = ""
    uid: Annotated[str, doc("The uid, which no other object ever has.", maxLength=128)] = ""

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where}"


def ref_of(resource: Resource, meta: ObjectMeta) -> ObjectRef:
    """The object that this metadata is of."""
    return ObjectRef(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
    )


class Reference(Model, frozen=True, kw_only=True):
    """An object as others name it (corev1.ObjectReference)."""

    api_version: Annotated[str, doc("Group and version.")] = ""
    kind: Annotated[str, doc("The kind.")] = ""
    namespace: Annotated[str, doc("The namespace.")] = ""
    name: Annotated[str, doc("The name.")] = ""
    uid: Annotated[str, doc("The uid.")] = ""


class SecretReference(Model, frozen=True, kw_only=True):
    """A Secret."""

    namespace: Annotated[str, doc("The namespace of the Secret.")] = ""
    name: Annotated[str, doc("The name of the Secret.")] = ""


class SelectorRequirement(Model, frozen=True, kw_only=True):
    """One thing that a label has to satisfy."""

    key: Annotated[str, doc("The label.", required=True)] = ""
    operator: Annotated[str, doc("In, NotIn, Exists or DoesNotExist.", required=True)] = ""
    values: Annotated[tuple[str, ...], doc("The values of In and NotIn.", **ATOMIC)] = ()

    def satisfied_by(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels do. An operator that is not known is satisfied by none."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values  # also where the label is missing
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return False


class LabelSelector(Model, frozen=True, kw_only=True):
    """A choice of objects by their labels."""

    match_labels: Annotated[dict[str, str], doc("Labels that an object must have.")] = msgspec.field(
        default_factory=dict
    )
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], doc("What else its labels must satisfy.", **ATOMIC)
    ] = ()

    @property
    def empty(self) -> bool:
        return not self.match_labels and not self.match_expressions

    def satisfied_by(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy all of it: an empty one is by any. What is not understood is by none."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            one.satisfied_by(labels) for one in self.match_expressions
        )


def manifest(resource: Resource, model: Model) -> dict[str, Any]:
    """A new object, as it is sent to the API server."""
    body: dict[str, Any] = msgspec.to_builtins(model)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
