"""API types that all kinds share: metadata, conditions, references and label selectors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.resources import Resource


class OwnerReference(Model, frozen=True, kw_only=True):
    """A reference to the owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Model, frozen=True, kw_only=True):
    """The metadata that Unwind reads. managedFields are left out: they are the larger part of most objects."""

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


# All fields that metav1.Condition requires are written, even if empty: the CRDs of other systems require them.
class Condition(Model, frozen=True, kw_only=True, omit_defaults=False):
    """A condition of an object."""

    type: Annotated[str, doc("Type of the condition.", required=True)] = ""
    status: Annotated[
        str, doc("Status of the condition: True, False or Unknown.", required=True, enum=["True", "False", "Unknown"])
    ] = "Unknown"
    reason: Annotated[str, doc("Reason of the last transition, as a CamelCase word.")] = ""
    message: Annotated[str, doc("Details about the last transition, in one sentence.")] = ""
    last_transition_time: Annotated[datetime | None, doc("When the status last changed.")] = None
    observed_generation: Annotated[
        int | msgspec.UnsetType, doc("The generation of the object that the condition describes.", minimum=0)
    ] = msgspec.UNSET


class ObjectRef(Model, frozen=True, kw_only=True):
    """Exactly one object, by uid: not another one that has, had or will have the same name."""

    group: Annotated[str, doc("API group; empty for the core group.")] = ""
    version: Annotated[str, doc("API version that the object was last read in.")] = ""
    kind: Annotated[str, doc("Kind of the object.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("Namespace; empty for a cluster-scoped object.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True, minLength=1, maxLength=253)] = ""
    uid: Annotated[str, doc("Unique id of the object.", maxLength=128)] = ""

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where}"


class NamedObject(Protocol):
    """Metadata that identifies an object."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


def ref_of(resource: Resource, meta: NamedObject) -> ObjectRef:
    """A reference to the object with this metadata."""
    return named_ref(resource, meta.name, namespace=meta.namespace, uid=meta.uid)


def named_ref(resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> ObjectRef:
    """A reference to the object of this name. Without a uid, it is not known which one."""
    group, version, kind = resource.group, resource.version, resource.kind
    return ObjectRef(group=group, version=version, kind=kind, namespace=namespace, name=name, uid=uid)


class Reference(Model, frozen=True, kw_only=True):
    """A reference to an object (corev1.ObjectReference)."""

    api_version: Annotated[str, doc("API group and version.")] = ""
    kind: Annotated[str, doc("Kind of the object.")] = ""
    namespace: Annotated[str, doc("Namespace of the object.")] = ""
    name: Annotated[str, doc("Name of the object.")] = ""
    uid: Annotated[str, doc("Unique id of the object.")] = ""


class SecretReference(Model, frozen=True, kw_only=True):
    """A reference to a Secret."""

    namespace: Annotated[str, doc("Namespace of the Secret.")] = ""
    name: Annotated[str, doc("Name of the Secret.")] = ""


class Operator(Word):
    """The operator of a requirement of a label selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(Model, frozen=True, kw_only=True):
    """One requirement of a label selector. The API server refuses unknown operators."""

    key: Annotated[str, doc("Key of the label.", required=True)] = ""
    operator: Annotated[str, doc("Operator of the requirement.", required=True, choice=Operator)] = ""
    values: Annotated[tuple[str, ...], doc("Values for In and NotIn.", **ATOMIC)] = ()

    @property
    def fault(self) -> str:
        """Why the requirement is invalid, for people; empty if it is valid."""
        operator = Operator.read(self.operator)
        if isinstance(operator, Unknown):
            return f"unknown operator {operator.text!r} for key {self.key} (valid: {operator.valid})"
        if bool(self.values) == (operator in (Operator.IN, Operator.NOT_IN)):
            return ""
        fault = "takes no values; remove them" if self.values else "needs values; add some"
        return f"operator {operator} for key {self.key} {fault}"

    def satisfied_by(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels match. An unknown operator never matches."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values  # also true if the label is missing
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return False


class LabelSelector(Model, frozen=True, kw_only=True):
    """Selects objects by their labels."""

    match_labels: Annotated[dict[str, str], doc("Labels that an object must have.")] = msgspec.field(
        default_factory=dict
    )
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], doc("Further requirements on the labels.", **ATOMIC)
    ] = ()

    @property
    def empty(self) -> bool:
        return not self.match_labels and not self.match_expressions

    def satisfied_by(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels match. An empty selector matches everything; an unknown operator matches nothing."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.satisfied_by(labels) for expression in self.match_expressions
        )

    def may_select(self, labels: Mapping[str, str]) -> bool:
        """Whether a selector that holds or excludes counts for these labels: one of its requirements that is invalid
        counts as met, so that nothing is deleted because of a typo. An empty selector selects nothing."""
        return (
            not self.empty
            and all(labels.get(key) == value for key, value in self.match_labels.items())
            and all(bool(expression.fault) or expression.satisfied_by(labels) for expression in self.match_expressions)
        )


def manifest(resource: Resource, model: Model) -> dict[str, Any]:
    """A new object, as it is sent to the API server."""
    body: dict[str, Any] = msgspec.to_builtins(model)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


# Reads and updates status conditions.


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    found = find(conditions, type_)
    return found is not None and found.status == "True"


def with_condition(
    conditions: tuple[Condition, ...],
    *,
    type: str,  # noqa: A002 - the name of the field
    status: bool | None,
    reason: str,
    message: str = "",
    generation: int | None = None,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with this one set; the same tuple if nothing changes, so that callers can skip the write.

    lastTransitionTime changes only with the status: it says since when the status holds, and a reworded message is no
    transition.
    """
    before = find(conditions, type)
    word = {True: "True", False: "False", None: "Unknown"}[status]
    moved = before is None or before.status != word
    after = Condition(
        type=type,
        status=word,
        reason=reason,
        message=message,
        # The API stores whole seconds, and what is written must equal what is read back.
        last_transition_time=now.replace(microsecond=0) if moved or before is None else before.last_transition_time,
        observed_generation=msgspec.UNSET if generation is None else generation,
    )
    if before is None:
        return (*conditions, after)
    if after == before:
        return conditions
    return tuple(after if condition is before else condition for condition in conditions)


def without_condition(conditions: tuple[Condition, ...], type_: str) -> tuple[Condition, ...]:
    """The conditions without this type; the same tuple if it is not present."""
    if find(conditions, type_) is None:
        return conditions
    return tuple(condition for condition in conditions if condition.type != type_)
