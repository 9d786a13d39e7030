"""Who lets a cluster go, and who deletes it: what is answered, and what is written."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from unwind.api.capi import CLUSTERS
from unwind.api.names import FORCE_RELEASE_ANNOTATION as SAID
from unwind.api.names import REMOVE_STRATEGY_ANNOTATION, REMOVE_STRATEGY_BY_ANNOTATION
from unwind.capi.cluster_webhook import DeletionRequests, DeletionWarning, answer, restrategised
from unwind.kube.errors import UnreachableError
from unwind.server.routes import Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget

POINTER = "/metadata/annotations/unwind.dev~1force-release-by"
ADD = [{"op": "add", "path": POINTER, "value": "alice"}]


CHANGED_BY = REMOVE_STRATEGY_BY_ANNOTATION
CHANGED = {"op": "add", "path": "/metadata/annotations/unwind.dev~1remove-strategy-by", "value": "Needless by alice"}


@pytest.mark.parametrize(
    ("old", "new", "fields", "patch"),
    [
        ({"a": "b"}, {"a": "b"}, ("Required", "Needless"), [CHANGED]),
        (
            {},
            {},
            ("Required", "Needless"),
            [CHANGED | {"path": "/metadata/annotations", "value": {CHANGED_BY: "Needless by alice"}}],
        ),
        ({}, {CHANGED_BY: "Needless by bob"}, ("Required", "Needless"), [CHANGED]),
        ({CHANGED_BY: "Required by bob"}, {CHANGED_BY: "Required by bob"}, ("Required", "Needless"), [CHANGED]),
        (
            {CHANGED_BY: "Required by bob"},
            {CHANGED_BY: "Required by carol"},
            ("Required", "Required"),
            [CHANGED | {"value": "Required by bob"}],
        ),
        ({}, {CHANGED_BY: "Needless by bob"}, ("Required", "Required"), [{"op": "remove", "path": CHANGED["path"]}]),
        ({REMOVE_STRATEGY_ANNOTATION: "Required"}, {REMOVE_STRATEGY_ANNOTATION: "Needless"}, (None, None), [CHANGED]),
        # Where the field is served, the annotation says nothing.
        ({REMOVE_STRATEGY_ANNOTATION: "Required"}, {REMOVE_STRATEGY_ANNOTATION: "Needless"}, ("Needless",) * 2, []),
        ({}, {}, ("Required", "Required"), []),
    ],
)
def test_who_changes_the_strategy_of_a_member_is_named_with_what_it_is_now(
    old: dict[str, str], new: dict[str, str], fields: tuple[str | None, str | None], patch: list[dict[str, Any]]
) -> None:
    assert restrategised(old, new, *fields, by="alice") == patch


class Clusters:
    """A server that takes every patch, or does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.patches: list[dict[str, Any]] = []

    async def patch(
        self, _: object, name: str, patch: dict[str, Any], *, namespace: str, field_manager: str = ""
    ) -> None:
        del field_manager
        if self.away:
            raise UnreachableError("nobody is there")
        self.patches.append({"name": name, "namespace": namespace, **patch})


async def asked(
    clusters: Clusters,
    warnings: Mapping[str, DeletionWarning] | None = None,
    requests: DeletionRequests | None = None,
    **request: Any,
) -> dict[str, Any]:
    whole = {"uid": "q-1", "userInfo": {"username": "alice"}, **request}
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole})
    answered: Response = await answer(
        cast("Client", clusters), lambda: CLUSTERS, warnings or {}, body, about(), requests=requests
    )
    assert answered.status == 200
    response: dict[str, Any] = msgspec.json.decode(answered.body)["response"]
    assert response["uid"] == "q-1"
    assert response["allowed"] is True
    return response


def about() -> Request:
    return Request(method="POST", path="/", query="", headers={}, peer="", ends=time.monotonic() + 3)


def cluster(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c", "namespace": "default", "uid": "u-1", **metadata}}


async def test_an_update_is_answered_with_the_patch_that_names_the_user() -> None:
    new = cluster(annotations={SAID: "now"})
    response = await asked(Clusters(), operation="UPDATE", object=new, oldObject=cluster())
    assert response["patchType"] == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == ADD


async def test_a_deletion_is_noted_on_exactly_that_cluster() -> None:
    clusters = Clusters()
    assert "patch" not in await asked(clusters, operation="DELETE", oldObject=cluster())
    annotations = {"unwind.dev/deletion-requested-by": "alice"}
    metadata = {"uid": "u-1", "annotations": annotations}
    assert clusters.patches == [{"name": "c", "namespace": "default", "metadata": metadata}]


@pytest.mark.parametrize(
    "request_",
    [
        {"dryRun": True},
        {"options": {"kind": "DeleteOptions", "preconditions": {"uid": "u-1", "resourceVersion": "7"}}},
        {"oldObject": cluster(deletionTimestamp="2026-01-01T00:00:00Z")},
        {"oldObject": cluster(annotations={"unwind.dev/deletion-requested-by": "alice"})},
        {"userInfo": {}},
        {"oldObject": None},
    ],
)
async def test_nothing_is_written_where_it_is_no_deletion_or_would_be_in_its_way(request_: dict[str, Any]) -> None:
    clusters = Clusters()
    await asked(clusters, **{"operation": "DELETE", "oldObject": cluster(), **request_})
    assert clusters.patches == []


async def test_a_deletion_goes_on_where_it_cannot_be_noted() -> None:
    await asked(Clusters(away=True), operation="DELETE", oldObject=cluster())


def of_capi(said: str) -> dict[str, DeletionWarning]:
    return {CLUSTERS.group: lambda body: f"{said} {msgspec.json.decode(body)['metadata']['name']}"}


@pytest.mark.parametrize("more", [{}, {"dryRun": True}, {"options": {"preconditions": {"resourceVersion": "7"}}}])
async def test_a_deletion_is_answered_with_a_warning(more: dict[str, Any]) -> None:
    kind = {"group": CLUSTERS.group, "kind": "Cluster"}
    response = await asked(Clusters(), of_capi("watch"), operation="DELETE", kind=kind, oldObject=cluster(), **more)
    assert response["warnings"] == ["watch c"]


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE", "object": cluster(annotations={SAID: "now"})},
        {"oldObject": cluster(deletionTimestamp="2026-01-01T00:00:00Z")},
        {"oldObject": None},
        {"kind": {"group": "cluster.karmada.io", "kind": "Cluster"}},
    ],
)
async def test_only_the_first_deletion_of_a_kind_with_a_warning_has_one(request_: dict[str, Any]) -> None:
    kind = {"group": CLUSTERS.group, "kind": "Cluster"}
    whole = {"operation": "DELETE", "kind": kind, "oldObject": cluster(), **request_}
    assert "warnings" not in await asked(Clusters(), of_capi("watch"), **whole)


async def test_a_deletion_goes_on_where_its_warning_fails() -> None:
    def broken(body: bytes) -> str:
        raise RuntimeError("no")

    kind = {"group": CLUSTERS.group, "kind": "Cluster"}
    response = await asked(Clusters(), {CLUSTERS.group: broken}, operation="DELETE", kind=kind, oldObject=cluster())
    assert "warnings" not in response


# A DELETE that is the request for a teardown

CAPI = {"group": CLUSTERS.group, "kind": "Cluster"}
MOVED = "clusterctl.cluster.x-k8s.io/delete-for-move"


async def by_policy(target: AddonTarget) -> tuple[str, ...]:
    assert target.ref.uid == "u-1"
    return ("production",)


async def test_a_deletion_that_is_the_request_pauses_the_cluster_and_says_how_to_follow_it() -> None:
    clusters = Clusters()
    # Also if an earlier one of the same user was refused, and without the pause of `clusterctl move`.
    old = cluster(annotations={"unwind.dev/deletion-requested-by": "alice", MOVED: ""})
    response = await asked(clusters, requests=by_policy, operation="DELETE", kind=CAPI, oldObject=old)
    annotations = {"unwind.dev/deletion-requested-by": "alice", "cluster.x-k8s.io/paused": "unwind.dev"}
    metadata = {"uid": "u-1", "annotations": annotations}
    assert clusters.patches == [{"name": "c", "namespace": "default", "metadata": metadata}]
    [warning] = response["warnings"]
    assert "TeardownPolicy production" in warning
    assert "unwind status c" in warning


@pytest.mark.parametrize(
    "request_",
    [
        {"dryRun": True},
        {"options": {"preconditions": {"resourceVersion": "7"}}},
        {"options": {"propagationPolicy": "Foreground"}},
        {"oldObject": cluster(finalizers=["foregroundDeletion"])},
        {"oldObject": cluster(deletionTimestamp="2026-01-01T00:00:00Z")},
        {"oldObject": cluster(annotations={"cluster.x-k8s.io/paused": "unwind.dev"})},
        {"oldObject": cluster(annotations={"cluster.x-k8s.io/paused": ""})},
        {"oldObject": {**cluster(annotations={MOVED: ""}), "spec": {"paused": True}}},
        {"oldObject": {**cluster(), "spec": {"paused": True}}},
        {"oldObject": cluster(labels={"policy.kruise.io/delete-protection": "Always"})},
        {"kind": {"group": "cluster.karmada.io", "kind": "Cluster"}},
        {"operation": "UPDATE", "object": cluster()},
        {"userInfo": {}},
    ],
)
async def test_no_other_deletion_pauses_a_cluster(request_: dict[str, Any]) -> None:
    clusters = Clusters()
    whole = {"operation": "DELETE", "kind": CAPI, "oldObject": cluster(), **request_}
    await asked(clusters, requests=by_policy, **whole)
    assert not any("cluster.x-k8s.io/paused" in one["metadata"]["annotations"] for one in clusters.patches)


async def test_a_cluster_whose_policies_do_not_say_so_or_cannot_be_read_is_not_paused() -> None:
    async def refuse(target: AddonTarget) -> tuple[str, ...]:
        del target
        return ()

    async def fail(target: AddonTarget) -> tuple[str, ...]:
        raise UnreachableError(f"no answer about {target}")

    for requests in (refuse, fail, None):
        clusters = Clusters()
        response = await asked(clusters, requests=requests, operation="DELETE", kind=CAPI, oldObject=cluster())
        assert "warnings" not in response
        assert [set(one["metadata"]["annotations"]) for one in clusters.patches] == [
            {"unwind.dev/deletion-requested-by"}
        ]


async def test_what_is_no_review_is_refused_with_a_sentence() -> None:
    for body in (b"", b"[]", b'{"apiVersion": "v1"}', b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":"q"}'):
        answered = await answer(cast("Client", Clusters()), lambda: CLUSTERS, {}, body, about())
        assert answered.status == 400
        assert b"AdmissionReview" in answered.body
