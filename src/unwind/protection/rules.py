"""May an object be deleted? What it says itself, and what the rest of the cluster says (pure)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection.kinds import Controlled, ProtectedKind, Rest

FORBIDDEN = "forbidden by ResourcesProtectionDeletion for"
"""How a denial begins: the words that people search for."""


class Why(StrEnum):
    """Why something may not be deleted, as one word for counters."""

    ALWAYS = "Always"
    CASCADING = "Cascading"
    UNKNOWN_VALUE = "UnknownValue"
    HOLDS_PROTECTED = "HoldsProtected"
    """A namespace or a CRD with something protected in it."""
    NOT_KNOWN = "NotKnown"
    """It could not be found out whether something depends on it."""


class Denied(msgspec.Struct, frozen=True):
    """That it may not."""

    why: Why
    message: str


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to delete."""

    kind: ProtectedKind
    label: str | None = None
    """What the label says; None where there is none."""
    terminating: bool = False
    count: int | None = None
    """How much depends on it, where the object itself says that and it could be read."""
    controlled: bool = False
    """Whether one of its owners is its controller."""
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
    """What is in a namespace, or of a CRD."""

    pods: int = 0
    """Active ones: neither done nor being deleted."""
    claims: int = 0
    """Bound ones that are not being deleted."""
    resources: int = 0
    """Custom resources that are not being deleted."""
    protected: tuple[ObjectRef, ...] = ()
    """Objects in it that could not be deleted by themselves, the first few; each refuses, or would go unasked."""
    failed: str = ""
    """Why it could not be found out, and what to do about it."""
    skipped: str = ""
    """What was not looked at, because the manager was told not to."""


def by_itself(subject: Subject) -> Denied | bool:
    """What an object alone decides: a denial; True, that it may go; False, that the rest of the cluster has a say."""
    if subject.terminating:
        return True  # whatever it says: it goes already
    if subject.exempt:
        return True
    if subject.label is None:
        return subject.kind.rest is None
    word = DeleteProtection.read(subject.label)
    if isinstance(word, Unknown) or (word is DeleteProtection.CASCADING and not subject.kind.cascading):
        return Denied(Why.UNKNOWN_VALUE, unknown(subject.label, subject.kind))
    if word is DeleteProtection.ALWAYS:
        return Denied(Why.ALWAYS, always())
    if subject.kind.rest:
        return False
    counted = subject.kind.count
    if counted is None:
        return True
    if subject.count is None:
        return Denied(Why.NOT_KNOWN, unread(counted.what))
    return _depending(counted.what, subject.count) or True


def with_contents(subject: Subject, contents: Contents) -> Denied | bool:
    """The same where the rest of the cluster has a say."""
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
        # It may hold something protected. Deleting a CRD would destroy that without another question.
        return Denied(Why.NOT_KNOWN, f"{FORBIDDEN} list protected objects error: {contents.failed}")
    return True


def unknown(value: str, kind: ProtectedKind) -> str:
    """What somebody reads whose label says what nobody understands: when it is written, and when it protects."""
    words = "Always and Cascading are" if kind.cascading else f"for a {kind.kind} only Always is"
    return f"{FORBIDDEN} {DELETE_PROTECTION_LABEL}={value}, a value that is not known: {words}"


def always() -> str:
    """What somebody reads who deletes what is protected always."""
    return _said(DeleteProtection.ALWAYS)


def cascading(what: str, count: object) -> str:
    """What somebody reads who deletes something that something depends on."""
    return f"{_said(DeleteProtection.CASCADING)} and {what} {count}>0"


def unread(what: str) -> str:
    """The same where an object says no number."""
    return f"{_said(DeleteProtection.CASCADING)} and {what} that could not be read"


def way_out(resource: str, namespace: str, name: str) -> str:
    """What follows a denial: how to delete it all the same. `resource`: as kubectl calls it (deployments.apps)."""
    where = f" -n {namespace}" if namespace else ""
    command = f"kubectl label {resource}/{name}{where} {DELETE_PROTECTION_LABEL}-"
    return f"; to delete it all the same, take the label away first: {command}"


def refused_label(kind: ProtectedKind, value: str | None, *, before: str | None, by_controller: bool) -> str | None:
    """Why a value of the label may not be written; None if it may.

    `before`: what it was, None if there was none. Whoever writes something else is not held up by what is there
    already, and neither is a controller, which only passes on what a template says.
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
