"""What a cancelled deletion has done, and how it is reported."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import CANCEL_REASON_ANNOTATION, CANCEL_REASON_BY_ANNOTATION
from unwind.api.unwind import (
    CANCELLED_SHOWN,
    REASON_LENGTH,
    Cancellation,
    Entry,
    Phase,
    Plan,
    Teardown,
    TeardownSpec,
    TeardownStatus,
)
from unwind.cli.cancel import outcome
from unwind.deleters.builtin import replicas_before
from unwind.inventory.inventories import Item
from unwind.teardown.cancellation import ObjectState, Restored, cancellation_result, message, with_reason

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
TARGET = ObjectRef(version="v1", kind="Namespace", name="shop", uid="ns")


def ref(name: str) -> ObjectRef:
    return ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name=name, uid=name)


def item(name: str) -> Item:
    return Item("chunk", name, Entry(object=ref(name), resource="configmaps", state="Confirmed"))


def found(**states: ObjectState) -> list[tuple[Item, ObjectState]]:
    return [(item(name), state) for name, state in states.items()]


GONE, DELETING, STAYS, UNKNOWN = ObjectState.GONE, ObjectState.DELETING, ObjectState.STAYS, ObjectState.UNKNOWN


def test_it_counts_what_became_of_each_object() -> None:
    restored = Restored(done=("Deployment shop/web has 3 replicas again",))
    done = cancellation_result(found(a=GONE, b=DELETING, c=STAYS, d=STAYS, e=UNKNOWN), restored, now=NOW)
    assert (done.removed, done.deleting, done.kept, done.unknown) == (1, 1, 2, 1)
    assert (done.removed_objects, done.deleting_objects) == ((ref("a"),), (ref("b"),))
    assert message(done) == (
        "1 of 5 objects are gone (ConfigMap shop/a), 1 are being deleted, which cannot be undone (ConfigMap shop/b),"
        " 1 could not be read, look at them with kubectl (ConfigMap shop/e), 2 stay;"
        " Deployment shop/web has 3 replicas again"
    )


def test_it_names_some_of_many_objects() -> None:
    many = CANCELLED_SHOWN + 20
    done = cancellation_result([(item(str(number)), GONE) for number in range(many)], Restored(), now=NOW)
    assert (done.removed, len(done.removed_objects)) == (many, CANCELLED_SHOWN)
    assert message(done) == (
        f"{many} of {many} objects are gone (ConfigMap shop/0, ConfigMap shop/1, ConfigMap shop/2 and 117 more), 0 stay"
    )


def test_it_says_if_nothing_was_deleted() -> None:
    assert message(cancellation_result([], Restored(), now=NOW)) == "nothing was deleted"


def test_the_reason_is_recorded_with_its_author() -> None:
    given = {CANCEL_REASON_ANNOTATION: "the wrong namespace", CANCEL_REASON_BY_ANNOTATION: "jane"}
    done = with_reason(Cancellation(removed=1, kept=2), given)
    assert (done.reason, done.by, done.kept) == ("the wrong namespace", "jane", 2)
    assert message(done) == "1 of 3 objects are gone, 2 stay; reason given by jane: the wrong namespace"
    assert message(with_reason(Cancellation(), given)).startswith("nothing was deleted; reason given by jane: ")


@pytest.mark.parametrize("annotations", [{}, {CANCEL_REASON_ANNOTATION: " \n"}, {CANCEL_REASON_BY_ANNOTATION: "jane"}])
def test_without_a_reason_nobody_is_named(annotations: dict[str, str]) -> None:
    assert with_reason(Cancellation(kept=1), annotations) == Cancellation(kept=1)


def test_the_reason_is_one_line_of_bounded_length() -> None:
    """The admission policy may be absent: then anything can be in the annotations."""
    done = with_reason(Cancellation(), {CANCEL_REASON_ANNOTATION: "a\x1b[2J\nb" + "c" * 2 * REASON_LENGTH})
    assert done.reason.startswith("a [2J bc")
    assert len(done.reason) <= REASON_LENGTH
    assert done.by == "an unknown user"


@pytest.mark.parametrize(
    ("memo", "expected"),
    [
        ({}, None),
        ({"scale-to-zero.joined": "true"}, None),
        ({"scale-to-zero.replicas": "3"}, 3),
        ({"scale-to-zero.replicas": "many"}, None),
        ({"other.replicas": "3"}, None),
    ],
)
def test_replicas_are_restored_from_the_memo_of_the_deleter(memo: dict[str, str], expected: int | None) -> None:
    assert replicas_before(memo) == expected


def teardown(phase: Phase, done: Cancellation | None = None, *, plan: bool = True) -> Teardown:
    spec = TeardownSpec(title="Namespace shop", target=TARGET, plan=Plan() if plan else None)
    status = TeardownStatus(phase=phase.value, cancelled=done)
    return Teardown(metadata=ObjectMeta(name="request-ns", uid="t"), spec=spec, status=status)


@pytest.mark.parametrize(
    ("last", "kept", "phase"),
    [
        (teardown(Phase.CANCELLED, Cancellation(kept=3)), True, "Cancelled"),
        (teardown(Phase.CANCELLED, Cancellation(removed=1, removed_objects=(TARGET,))), False, "Cancelled"),
        (teardown(Phase.CANCELLED, Cancellation(deleting=1, deleting_objects=(TARGET,))), False, "Cancelled"),
        (teardown(Phase.PENDING, plan=False), True, "Cancelled"),
        (teardown(Phase.REMOVING), True, "Cancelled"),
        (teardown(Phase.COMPLETE), False, "Complete"),
        (teardown(Phase.REFUSED, plan=False), True, "Refused"),
    ],
)
def test_the_command_says_whether_the_target_stays(last: Teardown, kept: bool, phase: str) -> None:
    result = outcome(last)
    assert (result.kept, result.phase, result.target) == (kept, phase, TARGET)
    assert result.message
    assert msgspec.to_builtins(result)["teardown"] == "request-ns"
