"""Release and cancel: what is offered, and what a confirmation is good for."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import Teardown, TeardownSpec, TeardownStatus
from unwind.dashboard.actions import Action, ActionPreview, Confirmations, NotAllowedError, possible
from unwind.testing.clock import StillClock

CLUSTER = ObjectRef(group=CLUSTERS.group, kind=CLUSTERS.kind, namespace="fleet", name="prod", uid="u")


def teardown(cause: str, *, phase: str = "Held", target: ObjectRef = CLUSTER) -> Teardown:
    return Teardown(
        metadata=ObjectMeta(name="t", uid="t-uid"),
        spec=TeardownSpec(title="x", target=target, cause=cause),
        status=TeardownStatus(phase=phase),
    )


def preview(action: Action = Action.RELEASE) -> ActionPreview:
    return ActionPreview(action=action, teardown=teardown("ClusterDeleted"), title="x", confirm="prod")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (teardown("ClusterDeleted"), Action.RELEASE),
        (teardown("Unjoined"), Action.RELEASE),
        (teardown("Requested"), Action.CANCEL),
        (teardown("Requested", phase=""), Action.CANCEL),
        (teardown("Withdrawn"), None),
        (teardown("Pruned"), None),
        (teardown("Moved"), None),
        (teardown("Unknown"), None),
        (teardown("ClusterDeleted", phase="Complete"), None),
        (teardown("Requested", phase="Cancelled"), None),
        # A Teardown that a user has written may name anything.
        (teardown("ClusterDeleted", target=ObjectRef(kind="Secret", name="s", uid="u")), None),
    ],
)
def test_what_can_be_done_follows_from_the_cause_and_the_phase(item: Teardown, expected: Action | None) -> None:
    assert possible(item) is expected


def test_a_teardown_that_the_manager_ignores_or_that_is_being_cancelled_offers_nothing() -> None:
    aside = ObjectMeta(name="t", labels={SET_ASIDE_LABEL: "true"})
    assert possible(msgspec.structs.replace(teardown("ClusterDeleted"), metadata=aside)) is None
    ending = ObjectMeta(name="t", deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    assert possible(msgspec.structs.replace(teardown("Requested"), metadata=ending)) is None


def test_a_list_is_confirmed_once() -> None:
    confirmations = Confirmations()
    value = confirmations.shown(preview())
    assert confirmations.taken(value, Action.RELEASE, "t").confirm == "prod"
    with pytest.raises(NotAllowedError, match="was not shown"):
        confirmations.taken(value, Action.RELEASE, "t")
    with pytest.raises(NotAllowedError, match="was not shown"):
        confirmations.taken("", Action.RELEASE, "t")


@pytest.mark.parametrize(("action", "name"), [(Action.CANCEL, "t"), (Action.RELEASE, "another")])
def test_a_list_confirms_nothing_else(action: Action, name: str) -> None:
    confirmations = Confirmations()
    with pytest.raises(NotAllowedError, match="another list"):
        confirmations.taken(confirmations.shown(preview()), action, name)


async def test_an_old_list_confirms_nothing() -> None:
    clock = StillClock()
    confirmations = Confirmations(clock)
    value = confirmations.shown(preview())
    clock.advance(901)
    with pytest.raises(NotAllowedError, match="too long ago"):
        confirmations.taken(value, Action.RELEASE, "t")
