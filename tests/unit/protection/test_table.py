"""The rules in Python answer the table that the policies and the webhook are held against; and it catches mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plane.support.protection_table import BY_ITSELF, LABEL, OTHERS, ROWS, P, Row
from unwind.api.meta import ObjectRef
from unwind.protection import rules
from unwind.protection.cascading_counts import REPLICAS
from unwind.protection.protected_kinds import KINDS, ProtectedKind
from unwind.protection.rules import Contents, Denied, Subject, by_itself, refused_label, way_out, with_contents

if TYPE_CHECKING:
    from collections.abc import Callable

INSIDE = {
    "pending-pod": Contents(pods=1),
    "bound-claim": Contents(claims=1),
    "resource": Contents(resources=1),
    "protected": Contents(protected=(ObjectRef(kind="ConfigMap", namespace="row", name="kept"),)),
    "protected-resource": Contents(protected=(ObjectRef(kind="Thing", name="one"),)),
    "unserved": Contents(failed="no version of the CRD is served"),
    **{
        f"protected-{kind.kind.lower()}": Contents(protected=(ObjectRef(kind=kind.kind, namespace="row", name="kept"),))
        for kind in OTHERS
    },
}
BUSY: dict[str, tuple[str, str, Any]] = {
    "replicas": ("spec", "replicas", 2),
    "scheduled pods": ("status", "currentNumberScheduled", 2),
    "active pods": ("status", "active", 1),
    "active jobs": ("status", "active", [{"name": "one"}]),
    '"Bound" status pvc': ("status", "phase", "Bound"),
    '"Bound" status pv': ("status", "phase", "Bound"),
    "matching clusters": ("status", "matchingClusters", [{"name": "edge"}]),
}
IDLE: dict[str, Any] = {
    "replicas": {"spec": {"replicas": 0}},
    '"Bound" status pvc': {"status": {"phase": "Pending"}},
    '"Bound" status pv': {"status": {"phase": "Available"}},
    "active jobs": {"status": {"active": []}},
}


def content(row: Row) -> dict[str, Any]:
    """As much of the object as is counted."""
    assert row.kind.count
    outer, inner, value = BUSY[row.kind.count.what]
    match row.state:
        case "busy":
            return {outer: {inner: value}}
        case "unreadable":
            return {outer: {inner: "many"}}
        case "unsaid":
            return {outer: {}}
    found: dict[str, Any] = IDLE.get(row.kind.count.what, {})
    return found


def subject(row: Row, kind: ProtectedKind) -> Subject:
    count = None
    if kind.count:
        try:
            count = kind.count.of(content(row))
        except ValueError:
            count = None
    return Subject(
        kind=kind,
        label=row.label,
        terminating=row.state == "terminating",
        count=count,
        controlled=row.state == "controlled",
    )


def answers_as_it_says(row: Row, *, changed: Callable[[ProtectedKind], ProtectedKind] = lambda kind: kind) -> bool:
    said = with_contents(subject(row, changed(row.kind)), INSIDE.get(row.state, Contents()))
    if isinstance(said, Denied):
        return bool(row.denied) and said.message.startswith(row.denied)
    return said is True and not row.denied


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_row_is_answered_as_it_says(row: Row) -> None:
    assert answers_as_it_says(row)


def test_what_an_object_alone_decides_needs_nothing_else() -> None:
    assert [row for row in BY_ITSELF if by_itself(subject(row, row.kind)) is False] == []
    others = [row for row in ROWS if row not in BY_ITSELF and row.state != "terminating"]
    assert [row for row in others if by_itself(subject(row, row.kind)) is not False] == []


def test_every_kind_is_refused_and_let_go_by_the_table() -> None:
    for kind in KINDS:
        for refused in (True, False):
            assert [row for row in ROWS if row.kind == kind and bool(row.denied) is refused], kind.kind


def _replace(**fields: Any) -> Callable[[ProtectedKind], ProtectedKind]:
    return lambda kind: msgspec.structs.replace(kind, **fields)


def _counting(**fields: Any) -> Callable[[ProtectedKind], ProtectedKind]:
    def changed(kind: ProtectedKind) -> ProtectedKind:
        count = msgspec.structs.replace(kind.count, **fields) if kind.count else None
        return msgspec.structs.replace(kind, count=count)

    return changed


@pytest.mark.parametrize(
    "changed",
    [_replace(count=None), _replace(rest=None), _counting(path=("spec", "other")), _counting(what="things")],
    ids=["nothing is counted", "the rest has no say", "something else is counted", "it is called otherwise"],
)
def test_a_kind_that_was_changed_is_caught_where_it_is_counted(
    changed: Callable[[ProtectedKind], ProtectedKind],
) -> None:
    for kind in KINDS:
        if changed(kind) != kind:
            mine = [row for row in ROWS if row.kind == kind]
            assert not all(answers_as_it_says(row, changed=changed) for row in mine), kind.kind


def test_another_default_and_another_word_are_caught() -> None:
    replicated = [row for row in ROWS if row.kind.count == REPLICAS]
    assert not all(answers_as_it_says(row, changed=_counting(default=0)) for row in replicated)
    for kind in KINDS:
        flipped = _replace(cascading=not kind.cascading)
        mine = [row for row in ROWS if row.kind == kind]
        assert not all(answers_as_it_says(row, changed=flipped) for row in mine), kind.kind


def test_a_label_is_refused_where_it_is_new_or_changed_and_by_whoever_decides_it() -> None:
    deployment = next(kind for kind in KINDS if kind.kind == "Deployment")
    cluster = next(kind for kind in KINDS if not kind.cascading)
    known = "unknown value (valid: Always, Cascading)"
    new = refused_label(deployment, "always", before=None, by_controller=False)
    assert new == f"{P} {LABEL}=always: {known}"
    assert refused_label(deployment, "", before=None, by_controller=False) == f"{P} {LABEL}=: {known}"
    assert refused_label(deployment, "always", before="Always", by_controller=False)
    assert refused_label(cluster, "Cascading", before=None, by_controller=False)
    for value, before, by_controller in (
        ("always", "always", False),
        ("always", None, True),
        (None, "always", False),
        ("Always", None, False),
        ("Cascading", "always", False),
    ):
        assert refused_label(deployment, value, before=before, by_controller=by_controller) is None


def test_the_way_out_is_a_command_for_this_object() -> None:
    assert way_out("services", "shop", "web").endswith(f": kubectl label services/web -n shop {LABEL}-")
    assert way_out("namespaces", "", "shop").endswith(f": kubectl label namespaces/shop {LABEL}-")


def test_every_denial_begins_with_the_words_that_people_search_for() -> None:
    assert rules.FORBIDDEN == P
    assert all(row.denied.startswith(P) for row in ROWS if row.denied)
