"""A plan as people and programs see it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Entry, EntryState, Plan, Step
from unwind.cli import plan
from unwind.cli.deletion_results import refuse
from unwind.errors import UnwindError
from unwind.planning.blast_radius import blast_radius
from unwind.preview.member_preview import BoundVolume
from unwind.preview.object_preview import Foreseen
from unwind.removal.deletion_scope import Told
from unwind.render.graphs import dot, mermaid
from unwind.render.svg import svg

if TYPE_CHECKING:
    from rich.console import RenderableType


def ref(kind: str, name: str) -> ObjectRef:
    return ObjectRef(version="v1", kind=kind, namespace="shop", name=name, uid=f"u-{name}")


TARGET = ObjectRef(version="v1", kind="Namespace", name="shop", uid="u-shop")


def made(**more: object) -> Foreseen:
    rest = (ref("ConfigMap", "a"), ref("ConfigMap", "b"), ref("Secret", "s"))
    steps = (
        Step(name="the rest", object=rest[0], effort=Effort.ENFORCE.value, wave=1, objects=3, needs=("namespaces",)),
        Step(name="namespaces", object=TARGET, effort=Effort.ENFORCE.value, wave=2, objects=1),
    )
    entries = [Entry(object=item, resource="x", state=EntryState.CONFIRMED.value) for item in (*rest, TARGET)]
    plain = Foreseen(
        title="Namespace shop",
        target=TARGET,
        requested=True,
        plan=Plan(steps=steps, waves=2, objects=4),
        objects={"the rest": rest, "namespaces": (TARGET,)},
        radius=blast_radius(entries, custom_resources={}),
        critical_path=("the rest", "namespaces"),
    )
    return msgspec.structs.replace(plain, **more)


def printed(what: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(what)
    return text.getvalue()


def test_the_table_has_each_step_with_its_kinds_and_nothing_that_is_not_there() -> None:
    told = printed(plan.preview_table(made()))
    assert "Namespace shop: 4 objects would be deleted, in 2 waves" in told
    assert "2 ConfigMap, 1 Secret" in told
    for absent in ("Refused", "Kept", "Warnings", "Cloud resources"):
        assert absent not in told


def test_the_table_names_what_refuses_stays_and_costs() -> None:
    told = printed(
        plan.preview_table(
            made(
                refusals=(Told(ref("ConfigMap", "a"), "it is protected"),),
                staying=(Told(ref("ConfigMap", "k"), "its policy is skip"),),
                volumes=(BoundVolume(name="pv-1", claim=ref("PersistentVolumeClaim", "d"), size="1Gi", goes=True),),
                warnings=("take care of [this]",),
                along=(ref("Pod", "p"), ref("Pod", "q")),
            )
        )
    )
    for line in (
        "ConfigMap shop/a: it is protected",
        "ConfigMap shop/k: its policy is skip",
        "1 volume: pv-1 (1Gi)",
        "take care of [this]",
        "2 Pod",
    ):
        assert line in told


def test_only_wide_names_every_object() -> None:
    assert "Secret shop/s" not in printed(plan.preview_table(made()))
    assert "Secret shop/s" in printed(plan.preview_table(made(), wide=True))


def test_machines_get_all_of_it_with_how_many_go() -> None:
    told = plan.preview_document(made(refusals=(Told(ref("ConfigMap", "a"), "no"),)))
    assert (told["total"], told["refused"], told["criticalPath"]) == (4, True, ("the rest", "namespaces"))
    msgspec.json.encode(told)


def test_a_cluster_and_what_it_owns_count_beside_its_add_ons() -> None:
    assert plan.total(made()) == 4
    assert plan.total(made(requested=False, along=(ref("Machine", "m"),))) == 6


def test_the_picture_has_each_step_and_marks_what_would_refuse() -> None:
    picture = plan.pictured(made(refusals=(Told(ref("ConfigMap", "a"), "it is protected"),)))
    first, last = picture.boxes
    assert (first.name, first.details) == ("the rest", ("2 ConfigMap", "1 Secret"))
    assert "it is protected" in first.blocked
    assert last.blocked == ""
    assert picture.edges == (("the rest", "namespaces"),)
    for drawn in (svg(picture), dot(picture), mermaid(picture)):
        assert "the rest" in drawn


def test_what_would_refuse_and_what_is_too_much_is_not_deleted() -> None:
    refuse(made(), None)
    refuse(made(), 4)
    with pytest.raises(
        UnwindError, match="cannot delete Namespace shop: 4 objects would be deleted, more than --max-objects 3"
    ):
        refuse(made(), 3)
    many = tuple(Told(ref("ConfigMap", str(number)), "no") for number in range(5))
    with pytest.raises(UnwindError, match=r"cannot delete .*; and 2 more"):
        refuse(made(refusals=many), None)
