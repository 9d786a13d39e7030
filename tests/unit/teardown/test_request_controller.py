"""What is written and said of requests."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import AGGREGATE_LABEL, MAX_OBJECTS_ANNOTATION, RESOURCE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.unwind import Cause, Effort, Teardown, TeardownSpec
from unwind.kube.errors import ApiError, APIStatus, Details
from unwind.removal.deletion_scope import Told
from unwind.teardown import requests
from unwind.teardown.plan import combine
from unwind.teardown.request_refusals import exceeds, invalid_request, invalid_target, refused_objects
from unwind.teardown.request_step_source import step
from unwind.teardown.requests import Missing, free_name, request_manifest
from unwind.teardown.step_sources import SourceSteps

TARGET = ObjectRef(version="v1", kind="Namespace", name="shop", uid="u-1")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def test_a_request_names_its_target_who_asks_and_by_which_word_rights_are_given() -> None:
    asked = request_manifest(TARGET, name="u-1", by="ann", plural="namespaces", now=NOW, max_objects=10)
    assert (asked.spec.target, asked.spec.cause, asked.spec.requested_by) == (TARGET, Cause.REQUESTED, "ann")
    assert asked.spec.title == "Namespace shop"
    assert asked.spec.plan is None
    assert asked.metadata.annotations == {RESOURCE_ANNOTATION: "namespaces", MAX_OBJECTS_ANNOTATION: "10"}
    assert asked.spec.requested_at == NOW.replace(microsecond=0)


def test_a_second_request_for_the_same_target_has_a_name_of_its_own() -> None:
    def named(name: str) -> Teardown:
        return Teardown(metadata=ObjectMeta(name=name))

    assert free_name("u-1", []) == "request-u-1"
    assert free_name("u-1", [named("request-u-1")]) == "request-u-1-2"
    assert free_name("u-1", [named("request-u-1"), named("request-u-1-2")]) == "request-u-1-3"


def test_the_plan_is_one_step_that_is_never_given_up() -> None:
    owner = ObjectRef(group="unwind.dev", version="v1alpha1", kind="Teardown", name="u-1", uid="t-1")
    made = combine([SourceSteps(steps=(step(owner, "Namespace shop", objects=7),))], {}, ()).drafted().plan
    assert made
    assert [(item.name, item.object.uid, item.effort, item.objects) for item in made.steps] == [
        ("Namespace shop", "t-1", Effort.ENFORCE.value, 7)
    ]
    assert (made.waves, made.objects) == (1, 7)


@pytest.mark.parametrize(
    ("limit", "objects", "told"),
    [
        (None, 1000, ""),
        ("10", 10, ""),
        ("10", 11, "11 objects would be deleted, but the limit is 10 (--max-objects); list them with `unwind plan`"),
        ("0", 1, "1 objects would be deleted, but the limit is 0 (--max-objects); list them with `unwind plan`"),
        (
            "many",
            1,
            (
                "annotation unwind.dev/max-objects is 'many', which is not a number; delete this Teardown and request"
                " the"
                " deletion with `unwind delete`"
            ),
        ),
    ],
)
def test_more_than_allowed_is_refused_and_so_is_a_limit_that_is_no_number(
    limit: str | None, objects: int, told: str
) -> None:
    assert exceeds(limit, objects) == told


def request(called: str = "request-u-1", **target: str) -> Teardown:
    ref = msgspec.structs.replace(TARGET, **target)
    return Teardown(metadata=ObjectMeta(name=called), spec=TeardownSpec(target=ref, cause=Cause.REQUESTED.value))


def test_a_request_has_a_name_of_its_own_and_is_for_one_object() -> None:
    assert invalid_request(request()) == ""
    assert "must begin with request-" in invalid_request(request("u-1"))
    assert "must have a name and a uid" in invalid_request(request(uid=""))
    assert "must have a name and a uid" in invalid_request(request(name=""))


def test_a_target_agrees_with_the_resource_that_is_served_or_is_refused() -> None:
    assert invalid_target(TARGET, NAMESPACES, "namespaces") == ""
    place = msgspec.structs.replace(TARGET, namespace="mine")
    assert invalid_target(place, CONFIG_MAPS, "configmaps") == ""
    assert "is cluster-scoped, but spec.target.namespace is 'mine'" in invalid_target(place, NAMESPACES, "namespaces")
    assert "is namespaced, but spec.target.namespace is empty" in invalid_target(TARGET, CONFIG_MAPS, "configmaps")
    for said in ("configmaps", "", "*", "namespaces/status"):
        assert "but the resource of Namespace is 'namespaces'" in invalid_target(TARGET, NAMESPACES, said)


def test_a_refusal_names_each_object_that_refuses() -> None:
    told = refused_objects([Told(TARGET, "it is protected"), Told(TARGET, "so is this")])
    assert told == "Namespace shop: it is protected; Namespace shop: so is this"


def test_a_missing_right_is_named_with_how_to_give_it() -> None:
    told = requests.told([Missing("apps", "deployments", ("list", "delete")), Missing("", "pods", ("delete",))])
    assert told.startswith("the manager lacks the right to list, delete deployments.apps; delete pods; ")
    assert AGGREGATE_LABEL in told


def test_what_may_not_be_read_is_known_from_the_answer() -> None:
    status = APIStatus(code=403, reason="Forbidden", details=Details(group="apps", kind="deployments"))
    assert str(requests.missing_right(ApiError(status, request="GET"))) == "get, list, watch deployments.apps"
    assert requests.missing_right(ApiError(APIStatus(code=403), request="GET")).resource == "*"
