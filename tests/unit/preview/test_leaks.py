"""What counts as left behind: exit code 4 of `unwind plan`."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry
from unwind.preview import leaks
from unwind.preview.cost_preview import LOAD_BALANCER, VOLUME, Cost
from unwind.removal.deletion_scope import Told


def ref(name: str, *, uid: str = "") -> ObjectRef:
    return ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name=name, uid=uid)


def test_a_kept_object_is_left_behind_only_if_it_exists() -> None:
    kept = Entry(object=ref("kept", uid="u-1"), source="HelmRelease shop/web: Helm keeps it", kept=True)
    absent = Entry(object=ref("absent"), source="HelmRelease shop/web: Helm keeps it", kept=True)
    going = Entry(object=ref("going", uid="u-2"), source="HelmRelease shop/web")
    assert leaks.of_kept([kept, absent, going]) == [Told(kept.object, "Helm keeps it")]


def test_costs_are_left_behind_only_if_nothing_decided_that() -> None:
    made = [
        Cost(what=LOAD_BALANCER, object=ref("lb", uid="u-1"), left=True),
        Cost(what=VOLUME, object=ref("disk", uid="u-2"), left=True, left_by="TeardownPolicy p"),
        Cost(what=VOLUME, object=ref("data", uid="u-3"), fate="deleted by step Drain/volumes (Enforce)"),
    ]
    assert leaks.of_costs(made) == [Told(ref("lb", uid="u-1"), "load balancer: no TeardownPolicy drains it")]


def test_an_object_is_told_once_and_only_if_no_other_step_has_it() -> None:
    found = [
        Told(ref("a", uid="u-1"), "first"),
        Told(ref("a", uid="u-1"), "second"),
        Told(ref("drained", uid="u-2"), "stays after its StatefulSet"),
        Told(ref("listed-twice"), "does not have its labels"),
        Told(ref("foreign"), "does not have its labels"),
    ]
    told = leaks.distinct(found, removed={"u-2"}, known=[ref("listed-twice", uid="u-9")])
    assert [(item.object.name, item.why) for item in told] == [("a", "first"), ("foreign", "does not have its labels")]
