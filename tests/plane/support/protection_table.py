"""What deletion protection has to do, as a table that goes through every way to decide.

A row is an object in a state, and what a DELETE of it is answered with. The words stand here as people read them, and
are not made by the functions that are tested. Numbers are those of the original's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import Resource
from unwind.protection.cascading_counts import REPLICAS
from unwind.protection.protected_kinds import DEFINITION, EXEMPT, KINDS, NAMESPACE, ProtectedKind, of_any

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL = DELETE_PROTECTION_LABEL
P = "forbidden by ResourcesProtectionDeletion for"
ALWAYS = f"{P} {LABEL}=Always"
CASCADING = f"{P} {LABEL}=Cascading"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what its DELETE is answered with."""

    number: int
    kind: ProtectedKind
    version: str
    label: str | None
    state: str = "idle"
    """See `protected_objects.put`."""
    denied: str = ""
    """How the denial begins; empty if there is none."""

    @property
    def name(self) -> str:
        said = "none" if self.label is None else f"is-{self.label}"
        return f"row-{self.number}-{said}-{self.version}-{self.state}".lower()

    @property
    def resource(self) -> Resource:
        kind = self.kind
        return Resource(kind.group, self.version, kind.plural, kind.kind, namespaced=kind.namespaced)

    @property
    def by_the_rest(self) -> bool:
        """Whether not the object alone decides."""
        return self.kind.rest is not None and self.label in (None, "Cascading")

    def __str__(self) -> str:
        return f"{self.kind.group or 'core'}/{self.kind.kind} {self.name}"


BUSY = {
    "replicas": "replicas 2>0",
    "scheduled pods": "scheduled pods 2>0",
    "active pods": "active pods 1>0",
    "active jobs": "active jobs 1>0",
    '"Bound" status pvc': '"Bound" status pvc 1>0',
    '"Bound" status pv': '"Bound" status pv 1>0',
    "matching clusters": "matching clusters 1>0",
}
"""What a denial says of each kind in the state `busy`."""


def _versions(kind: ProtectedKind) -> tuple[str, ...]:
    return ("v1",) if kind == DEFINITION else kind.versions  # v1beta1 of CRDs is served no longer


def _of_every_kind(kind: ProtectedKind, version: str) -> Iterable[Row]:
    def row(number: int, label: str | None, state: str = "idle", denied: str = "") -> Row:
        return Row(number=number, kind=kind, version=version, label=label, state=state, denied=denied)

    known = "valid: Always, Cascading" if kind.cascading else f"valid for a {kind.kind}: Always"
    yield row(1, "Always", denied=ALWAYS)
    yield row(12, None)
    for word in ("always", "Other"):
        yield row(12, word, denied=f"{P} {LABEL}={word}: unknown value ({known})")
    yield row(13, "Always", "terminating")
    if not kind.cascading:
        yield row(12, "Cascading", denied=f"{P} {LABEL}=Cascading: unknown value ({known})")
        return
    yield row(10, "Cascading")
    if kind.count:
        yield row(9, "Cascading", "busy", f"{CASCADING} and {BUSY[kind.count.what]}")
        yield row(12, None, "busy")


def _of_workloads(kind: ProtectedKind, version: str) -> Iterable[Row]:
    if kind.count == REPLICAS:
        denied = f"{CASCADING} and replicas 1>0"
        yield Row(number=15, kind=kind, version=version, label="Cascading", state="unsaid", denied=denied)
        if "." in kind.group:  # a CRD takes anything
            denied = f"{CASCADING} and unreadable replicas"
            yield Row(number=15, kind=kind, version=version, label="Cascading", state="unreadable", denied=denied)


OTHERS: tuple[ProtectedKind, ...] = (
    of_any("other.example.dev", "Gizmo", plural="gizmos", version="v1"),
    of_any("", "ServiceAccount", plural="serviceaccounts", version="v1"),
    of_any("rbac.authorization.k8s.io", "Role", plural="roles", version="v1"),
    of_any("scheduling.k8s.io", "PriorityClass", plural="priorityclasses", version="v1", namespaced=False),
)
"""Kinds that have no policy of their own."""
COPIES: tuple[ProtectedKind, ...] = tuple(kind for kind in EXEMPT if kind.kind != "Event")
"""Kinds that controllers write, with labels copied from other objects."""


def _of_others() -> Iterable[Row]:
    def row(kind: ProtectedKind, label: str | None, state: str = "idle", denied: str = "", number: int = 27) -> Row:
        return Row(number=number, kind=kind, version="v1", label=label, state=state, denied=denied)

    for kind in OTHERS:
        yield row(kind, "Always", denied=ALWAYS)
        unknown = f"{P} {LABEL}=always: unknown value (valid: Always, Cascading)"
        yield row(kind, "always", denied=unknown, number=12)
        yield row(kind, "Cascading")
        yield row(kind, None)
        yield row(kind, "Always", "terminating")
        if kind.namespaced:
            yield row(kind, "Always", "controlled")
    for kind in COPIES:
        yield row(kind, "Always")


def _of_containers() -> Iterable[Row]:
    def row(number: int, state: str, denied: str = "", *, label: str | None = "Cascading", kind: ProtectedKind) -> Row:
        return Row(number=number, kind=kind, version="v1", label=label, state=state, denied=denied)

    for number, state, denied in (
        (2, "pending-pod", f"{CASCADING} and active pods 1>0"),
        (3, "bound-claim", f'{CASCADING} and "Bound" status pvc 1>0'),
        (16, "succeeded-pod", ""),
        (16, "failed-pod", ""),
        (16, "terminating-pod", ""),
        (18, "pending-claim", ""),
        (18, "lost-claim", ""),
    ):
        yield row(number, state, denied, kind=NAMESPACE)
    yield row(6, "resource", f"{CASCADING} and active CRs 1>0", kind=DEFINITION)
    yield row(20, "terminating-resource", kind=DEFINITION)
    held = f"{P} {LABEL} of what is in it: ConfigMap "
    yield row(24, "protected", held, label=None, kind=NAMESPACE)
    yield row(24, "pending-pod", label=None, kind=NAMESPACE)
    yield row(12, "resource", label=None, kind=DEFINITION)
    # What cannot be listed is refused, with or without a label.
    unlisted = "error: no version of the CRD is served"
    yield row(26, "unserved", f"{P} list protected objects {unlisted}", label=None, kind=DEFINITION)
    yield row(26, "unserved", f"{P} list CRs {unlisted}", kind=DEFINITION)
    # An object of any kind keeps its namespace and its CRD.
    yield row(27, "protected-resource", f"{P} {LABEL} of what is of it: Thing", label=None, kind=DEFINITION)
    for kind in OTHERS:
        if kind.namespaced:
            held = f"{P} {LABEL} of what is in it: {kind.kind} "
            yield row(27, f"protected-{kind.kind.lower()}", held, label=None, kind=NAMESPACE)
    yield row(27, "controlled-gizmo", label=None, kind=NAMESPACE)
    yield row(27, "protected-endpointslice", label=None, kind=NAMESPACE)


ROWS: tuple[Row, ...] = (
    *(row for kind in KINDS for version in _versions(kind) for row in _of_every_kind(kind, version)),
    *(row for kind in KINDS for version in _versions(kind) for row in _of_workloads(kind, version)),
    *_of_containers(),
    *_of_others(),
)
"""All of it. What has to do with requests and not with objects is not among it: collections, dry runs, writes."""
BY_ITSELF: tuple[Row, ...] = tuple(row for row in ROWS if not row.by_the_rest)
"""What an object alone decides."""
