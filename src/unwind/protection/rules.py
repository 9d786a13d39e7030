"""The rules of deletion protection: whether an object may be deleted (pure).

`by_itself` decides by the object alone, with what `Cascading` counts in its fields (`cascading_counts`). For Namespaces
and CRDs, `with_contents` decides by what is in them (`Contents`): `contents_reader` and `namespace_cache` count it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection.protected_kinds import Controlled, ProtectedKind, Rest

FORBIDDEN = "forbidden by ResourcesProtectionDeletion for"
"""The prefix of every denial, as in OpenKruise."""


class Why(StrEnum):
    """The reason of a denial, for metrics."""

    ALWAYS = "Always"
    CASCADING = "Cascading"
    UNKNOWN_VALUE = "UnknownValue"
    HOLDS_PROTECTED = "HoldsProtected"
    """A namespace or CRD that contains a protected object."""
    NOT_KNOWN = "NotKnown"
    """Its dependents could not be determined."""


class Denied(msgspec.Struct, frozen=True):
    """A denial."""

    why: Why
    message: str


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The object of a DELETE request."""

    kind: ProtectedKind
    label: str | None = None
    """The value of the label; None if there is none."""
    terminating: bool = False
    count: int | None = None
    """The number of dependents, if the object has it and it is readable."""
    controlled: bool = False
    """Whether it has a controller."""
    by_controller: bool = False
    """Whether one of Kubernetes' own controllers deletes it."""

    @property
    def exempt(self) -> bool:
        """Whether the label does not protect it."""
        return self.kind.exempt or (
            self.controlled
            and (
                self.kind.controlled is Controlled.FREE
                or (self.kind.controlled is Controlled.FREE_FOR_CONTROLLERS and self.by_controller)
            )
        )


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a namespace or CRD: what `Cascading` counts in it, and what is protected in it whatever its own
    label says."""

    pods: int = 0
    """Active Pods: neither finished nor terminating."""
    claims: int = 0
    """Bound PersistentVolumeClaims that are not terminating."""
    resources: int = 0
    """Custom resources that are not terminating."""
    protected: tuple[ObjectRef, ...] = ()
    """The first protected objects in it; each would refuse deletion, or be deleted without admission."""
    failed: str = ""
    """Why the contents could not be determined, and what to do about it."""
    skipped: str = ""
    """What was not checked because of the manager's configuration."""


def by_itself(subject: Subject) -> Denied | bool:
    """The decision by the object alone: a denial; True: allowed; False: the contents decide."""
    if subject.terminating:
        return True  # already terminating
    if subject.exempt:
        return True
    if subject.label is None:
        return subject.kind.rest is None
    word = DeleteProtection.read(subject.label)
    if isinstance(word, Unknown) or (word is DeleteProtection.CASCADING and not subject.kind.cascading):
        return Denied(Why.UNKNOWN_VALUE, unknown(subject.label, subject.kind))
    if word is DeleteProtection.ALWAYS:
        return Denied(Why.ALWAYS, always_protected())
    if subject.kind.rest:
        return False
    counted = subject.kind.count
    if counted is None:
        return True
    if subject.count is None:
        return Denied(Why.NOT_KNOWN, unreadable_count(counted.what))
    return _depending(counted.what, subject.count) or True


def with_contents(subject: Subject, contents: Contents) -> Denied | bool:
    """The decision with the contents."""
    if (alone := by_itself(subject)) is not False:
        return alone
    if subject.label is not None:
        if contents.failed:
            what = "pods" if subject.kind.rest is Rest.CONTENTS else "CRs"
            return Denied(Why.NOT_KNOWN, f"{FORBIDDEN} list {what} error: {contents.failed}")
        for what, count in (
            ("active pods", contents.pods),
            ('"Bound" status pvc', contents.claims),
            ("active CRs", contents.resources),
        ):
            if denied := _depending(what, count):
                return denied
    if contents.protected:
        return Denied(Why.HOLDS_PROTECTED, _holding(subject, contents.protected))
    if contents.failed:
        # It may hold something protected. Deleting a CRD would delete that without another admission request.
        return Denied(Why.NOT_KNOWN, f"{FORBIDDEN} list protected objects error: {contents.failed}")
    return True


def unknown(value: str, kind: ProtectedKind) -> str:
    """The message for an unknown value of the label, when it is written and when it protects."""
    valid = "valid: Always, Cascading" if kind.cascading else f"valid for a {kind.kind}: Always"
    return f"{FORBIDDEN} {DELETE_PROTECTION_LABEL}={value}: unknown value ({valid})"


def always_protected() -> str:
    """The message for a protected object."""
    return _said(DeleteProtection.ALWAYS)


def cascading(what: str, count: object) -> str:
    """The message for an object with dependents."""
    return f"{_said(DeleteProtection.CASCADING)} and {what} {count}>0"


def unreadable_count(what: str) -> str:
    """The message if the number of dependents is not readable."""
    return f"{_said(DeleteProtection.CASCADING)} and unreadable {what}"


def way_out(resource: str, namespace: str, name: str) -> str:
    """The end of a denial: how to delete the object anyway. `resource`: its name for kubectl (deployments.apps)."""
    where = f" -n {namespace}" if namespace else ""
    command = f"kubectl label {resource}/{name}{where} {DELETE_PROTECTION_LABEL}-"
    return f"; to delete it anyway, remove the label first: {command}"


def label_of(denied: Denied) -> str:
    """The label in a denial, and what it counts, without the prefix: for a DELETE that Unwind itself does not send."""
    said = denied.message.removeprefix(f"{FORBIDDEN} ")
    return f"label {said}" if said.startswith(DELETE_PROTECTION_LABEL) else f"label {DELETE_PROTECTION_LABEL}: {said}"


def unprotect_command(resource: str, namespace: str, name: str, *, cluster: str = "") -> str:
    """The command that removes the label. `resource`: its name for kubectl (deployments.apps). `cluster`: the member
    that it is on; empty for the management cluster."""
    where = f" -n {namespace}" if namespace else ""
    on = f" --cluster {cluster}" if cluster else ""
    return f"unwind unprotect {resource}/{name}{where}{on}"


def refused_label(kind: ProtectedKind, value: str | None, *, before: str | None, by_controller: bool) -> str | None:
    """Why a value of the label may not be written; None if it may.

    `before`: the old value, None if there was none. An update that does not change the label is not denied, and neither
    is a controller, which only copies the labels of a template.
    """
    if value is None or value == before or by_controller:
        return None
    word = DeleteProtection.read(value)
    known = not isinstance(word, Unknown) and (word is not DeleteProtection.CASCADING or kind.cascading)
    return None if known else unknown(value, kind)


def _said(word: DeleteProtection) -> str:
    return f"{FORBIDDEN} {DELETE_PROTECTION_LABEL}={word.value}"


def _depending(what: str, count: int) -> Denied | None:
    return Denied(Why.CASCADING, cascading(what, count)) if count > 0 else None


def _holding(subject: Subject, protected: tuple[ObjectRef, ...]) -> str:
    named = ", ".join(str(ref) for ref in protected)
    where = "in it" if subject.kind.rest is Rest.CONTENTS else "of it"
    return f"{FORBIDDEN} {DELETE_PROTECTION_LABEL} of what is {where}: {named}"
