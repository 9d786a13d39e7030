"""Finished Teardowns with a ledger, for the tests of the archive."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.unit.teardown.teardown_courses import at, blocked, ran, ref
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import OWNER_LABEL
from unwind.api.unwind import (
    Cause,
    Entry,
    Inventory,
    InventorySpec,
    LedgerNote,
    MemberRef,
    Phase,
    Plan,
    Release,
    Step,
    StepState,
    Teardown,
    TeardownSpec,
    TeardownStatus,
    TimelineEntry,
)
from unwind.testing.clock import START

CLUSTER = ObjectRef(
    group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="fleet", name="prod", uid="c-1"
)
OWNER = ObjectRef(
    group="config.projectsveltos.io",
    version="v1beta1",
    kind="ClusterSummary",
    namespace="fleet",
    name="web-capi-prod",
    uid="s-1",
)
CLAIM = msgspec.structs.replace(ref("data"), uid="p-1")


def teardown(
    *, uid: str = "t-1", phase: Phase = Phase.RELEASED, cause: Cause = Cause.CLUSTER_DELETED, **target: str
) -> Teardown:
    target_ref = msgspec.structs.replace(CLUSTER, **target)
    status: dict[str, Any] = {"phase": phase.value}
    if phase.finished:
        state = StepState.GIVEN_UP if phase is Phase.RELEASED else StepState.REMOVED
        status |= {
            "finished_at": at(60),
            "left": 1,
            "steps": (ran("web", 0, 59, state),),
        }
    if phase is Phase.RELEASED:
        status["release"] = Release(reason="Forced", message="no backup any more", by="ann", at=at(58))
    return Teardown(
        metadata=ObjectMeta(
            name=target_ref.uid,
            uid=uid,
            resource_version="7",
            finalizers=("example.dev/wait",),
            labels={"unwind.dev/team": "shop", "example.dev/note": "x"},
            annotations={"kubectl.kubernetes.io/last-applied-configuration": "{password: s3cret}"},
        ),
        spec=TeardownSpec(
            target=target_ref,
            title=f"Cluster {target_ref.namespace}/{target_ref.name}",
            cause=cause.value,
            requested_at=START,
            plan=Plan(steps=(Step(name="web", object=OWNER, effort="Enforce", wave=1, objects=3),), waves=1, objects=3),
        ),
        status=TeardownStatus(started_at=START, **status),
    )


def inventory(owner: str = OWNER.uid, *, noted_at: int = 58, provisional: bool = False) -> Inventory:
    note = LedgerNote(reason="Forced", message="no backup any more", by="ann", at=at(noted_at), provisional=provisional)
    entries = {
        "data": Entry(object=CLAIM, resource="persistentvolumeclaims", state="Confirmed", ledger=note),
        "gone": Entry(
            object=msgspec.structs.replace(CLAIM, name="gone", uid="p-2"),
            resource="persistentvolumeclaims",
            state="Removed",
            memo={"replicas": "3"},
        ),
    }
    return Inventory(
        metadata=ObjectMeta(name=f"{owner}-0", namespace="home", labels={OWNER_LABEL: owner}),
        spec=InventorySpec(
            owner=msgspec.structs.replace(OWNER, uid=owner),
            member=MemberRef(object=CLUSTER, system_uid="k-1"),
            entries=entries,
        ),
    )


def block(name: str, start: int, end: int | None = None) -> TimelineEntry:
    return msgspec.structs.replace(blocked("web", start, end, name=name), message="it waits", by="")


def with_timeline(one: Teardown, *entries: TimelineEntry, omitted: int = 0) -> Teardown:
    status = msgspec.structs.replace(one.status, timeline=entries, timeline_omitted=omitted)
    return msgspec.structs.replace(one, status=status)
