"""What the API server is answered about a deletion, from the object, from caches, and from a fresh look."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from tests.unit.protection.asking import (
    QUESTION,
    V1,
    V1BETA1,
    WIDGET,
    Known,
    Server,
    Webhook,
    crd,
    labelled,
    request,
    review,
)
from unwind.api.meta import ObjectRef
from unwind.kube.transport import ServerAnswer
from unwind.protection.rules import FORBIDDEN
from unwind.server.routes import Response

P = f"403 {FORBIDDEN}"
LABEL = "policy.kruise.io/delete-protection"
PODS, CLAIMS = "/api/v1/namespaces/it/pods", "/api/v1/namespaces/it/persistentvolumeclaims"
CONFIG_MAPS = "/api/v1/namespaces/it/configmaps"
WIDGETS = "/apis/example.dev/v2/widgets"
CRDS = "apiextensions.k8s.io"
GOING: dict[str, Any] = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


def namespace(value: str | None, **more: Any) -> bytes:
    return review("Namespace", labelled(value, **more))


def definition(value: str | None, **more: Any) -> bytes:
    return review("CustomResourceDefinition", crd(value, **more), group=CRDS)


def pod(name: str = "p", **more: Any) -> dict[str, Any]:
    return labelled(None, name, namespace="it", **more)


# What the object says itself


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (review("Deployment", labelled("Always"), group="apps"), f"{P} {LABEL}=Always"),
        (
            review("Deployment", labelled("Cascading", spec={"replicas": 2}), group="apps"),
            f"{P} {LABEL}=Cascading and replicas 2>0",
        ),
        (
            review("Deployment", labelled("Cascading", spec={}), group="apps"),
            f"{P} {LABEL}=Cascading and replicas 1>0",
        ),
        (
            review("Deployment", labelled("Cascading", spec={"replicas": "x"}), group="apps"),
            f"{P} {LABEL}=Cascading and unreadable replicas",
        ),
        (review("Deployment", labelled("Cascading", spec={"replicas": 0}), group="apps"), ""),
        (review("Service", labelled("Cascading")), ""),
        (review("Service", labelled("always")), f"{P} {LABEL}=always: unknown value"),
        (review("Deployment", labelled(None, spec={"replicas": 3}), group="apps"), ""),
        (review("Deployment", labelled("Always", **GOING), group="apps"), ""),
        (review("Widget", labelled("Always"), group="example.dev"), f"{P} {LABEL}=Always"),
        (namespace("Always"), f"{P} {LABEL}=Always"),
    ],
)
async def test_what_the_object_decides_is_answered_at_once_with_nothing_looked_up(body: bytes, said: str) -> None:
    webhook = Webhook()
    assert isinstance(webhook.answering.deletion(body, request()), Response)
    told = await webhook.ask(body)
    assert told.startswith(said)
    assert bool(told) == bool(said)
    assert webhook.server.asked == []


async def test_a_denial_says_how_to_delete_it_all_the_same() -> None:
    body = review("Deployment", labelled("Always", "web", namespace="shop"), group="apps")
    assert f"kubectl label deployments.apps/web -n shop {LABEL}-" in await Webhook().ask(body)


@pytest.mark.parametrize(
    "body",
    [
        review("Namespace", None),
        review("Namespace", labelled("Always"), operation="UPDATE", new=labelled("Always")),
        review("Namespace", labelled("Always"), subResource="finalize"),
    ],
)
async def test_what_is_no_deletion_of_an_object_is_allowed(body: bytes) -> None:
    assert await Webhook().ask(body) == ""


@pytest.mark.parametrize("old", [7, "x", [], {}, {"metadata": {"labels": {LABEL: 1}}}, {"metadata": "x"}])
async def test_an_object_that_cannot_be_read_is_a_bad_request_and_does_not_pass(old: Any) -> None:
    assert (await Webhook().ask(review("Namespace", old))).startswith("400 cannot decode the object")


async def test_a_collection_has_no_name_in_the_request_and_goes_by_the_object() -> None:
    server = Server({"/api/v1/namespaces/it/pods": [pod()]})
    assert "active pods 1>0" in await Webhook(server).ask(
        review("Namespace", labelled("Cascading"), name="", namespace="")
    )


async def test_the_answer_is_in_the_version_of_the_question() -> None:
    for version in (V1, V1BETA1):
        for old in (labelled("Always"), labelled("Always", **GOING)):
            response = await Webhook().post(review("Service", old, review_version=version))
            told = msgspec.json.decode(response.body)
            assert (told["apiVersion"], told["response"]["uid"]) == (version, QUESTION)


async def test_what_is_no_review_is_refused_and_one_that_has_a_number_is_answered_under_it() -> None:
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"apiVersion":"admission.k8s.io/v2"}'):
        assert (await Webhook().post(body)).status == 400
    told = await Webhook().ask(review("Namespace", labelled("Always"), dryRun="yes"))
    assert told.startswith("400 cannot decode AdmissionReview")


# Namespaces


async def test_a_namespace_is_denied_from_caches_without_a_question() -> None:
    for known, said in (
        (Known(pods=3), "Cascading and active pods 3>0"),
        (Known(claims=2), 'Cascading and "Bound" status pvc 2>0'),
    ):
        webhook = Webhook(known=known)
        assert isinstance(webhook.answering.deletion(namespace("Cascading"), request()), Response)
        assert said in await webhook.ask(namespace("Cascading"))
        assert webhook.server.asked == []


async def test_what_caches_count_holds_no_namespace_without_the_label() -> None:
    assert await Webhook(known=Known(pods=3, claims=2)).ask(namespace(None)) == ""


async def test_a_namespace_that_caches_would_let_go_is_looked_at_first() -> None:
    webhook = Webhook(Server({PODS: [pod("p"), pod("q")]}))
    looking = webhook.answering.deletion(namespace("Cascading"), request())
    assert inspect.iscoroutine(looking)
    looking.close()
    assert "Cascading and active pods 2>0" in await webhook.ask(namespace("Cascading"))
    bound = labelled(None, "c", namespace="it", status={"phase": "Bound"})
    assert '"Bound" status pvc 1>0' in await Webhook(Server({CLAIMS: [bound]})).ask(namespace("Cascading"))


async def test_what_is_done_or_going_does_not_keep_a_namespace() -> None:
    claims = [
        labelled(None, "a", status={"phase": "Pending"}),
        labelled(None, "b", status={"phase": "Lost"}),
        labelled(None, "c", status={"phase": "Bound"}, **GOING),
    ]
    pods = [pod("p", status={"phase": "Succeeded"}), pod("q", status={"phase": "Failed"}), pod("r", **GOING)]
    assert await Webhook(Server({PODS: pods, CLAIMS: claims})).ask(namespace("Cascading")) == ""


async def test_the_one_active_pod_is_found_behind_a_thousand_that_go() -> None:
    pods = [pod(f"p{number}", **GOING) for number in range(1_000)]
    server = Server({PODS: [*pods, pod("last")]})
    assert "active pods 1>0" in await Webhook(server).ask(namespace("Cascading"))


async def test_a_pod_that_cannot_be_read_counts() -> None:
    assert "active pods 1>0" in await Webhook(Server({PODS: [{"metadata": {"name": 7}}]})).ask(namespace("Cascading"))


async def test_a_labelled_namespace_that_cannot_be_looked_into_stays_with_the_error() -> None:
    server = Server()
    server.broken[PODS] = ServerAnswer(
        403, b'{"kind":"Status","code":403,"reason":"Forbidden","message":"you may not"}'
    )
    told = await Webhook(server).ask(namespace("Cascading"))
    assert told.startswith(f"{P} list pods error: GET {PODS}: you may not (403 Forbidden)")
    assert "remove the label" not in told, "it would be refused without the label, too"


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (
            ServerAnswer(403, b'{"kind":"Status","code":403,"message":"you may not"}'),
            "grant the manager permission to list it",
        ),
        (ServerAnswer(404, b"404 page not found\n"), "set served: true for a version of its CRD"),
        (ServerAnswer(500, b"conversion webhook failed"), "retry"),
        (ServerAnswer(503, b"service unavailable"), "repair the server of this API"),
        (ServerAnswer(200, b"<html>"), "cannot decode the response"),
    ],
)
async def test_a_namespace_without_a_label_stays_if_one_kind_cannot_be_listed(
    answer: ServerAnswer, remedy: str
) -> None:
    for path in (CONFIG_MAPS, "/apis/example.dev/v2/namespaces/it/widgets"):
        server = Server()
        server.broken[path] = answer
        told = await Webhook(server).ask(namespace(None))
        assert told.startswith(f"{P} list protected objects error: ")
        assert remedy in told


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_a_namespace_stays_if_the_served_kinds_are_not_known(path: str) -> None:
    for answer in (ServerAnswer(500, b"oh"), ServerAnswer(200, b'{"kind":"APIGroupList","groups":[]}')):
        server = Server()
        server.broken[path] = answer
        assert (await Webhook(server).ask(namespace(None))).startswith(f"{P} list protected objects error: ")


async def test_a_namespace_stays_while_an_aggregated_api_does_not_answer() -> None:
    told = await Webhook(Server(stale=("metrics.example",))).ask(namespace(None))
    said = "v1.metrics.example does not respond; repair its server or delete its APIService"
    assert told == f"{P} list protected objects error: {said}"


async def test_a_kind_that_went_while_it_was_listed_holds_no_namespace() -> None:
    class Vanishing(Server):
        async def request(self, method: str, target: str, **more: Any) -> ServerAnswer:
            if "/widgets" in target:
                self.kinds.remove(WIDGET)
                return ServerAnswer(404, b"404 page not found\n")
            return await super().request(method, target, **more)

    assert await Webhook(Vanishing()).ask(namespace(None)) == ""


async def test_a_namespace_is_denied_by_a_protected_object_of_any_kind_unless_a_controller_owns_it() -> None:
    widgets = "/apis/example.dev/v2/namespaces/it/widgets"
    owned: dict[str, Any] = {"metadata": {"ownerReferences": [{"controller": True}]}}
    kept = labelled("Always", "kept", namespace="it")
    told = await Webhook(Server({widgets: [kept]})).ask(namespace(None))
    assert told == f"{P} {LABEL} of what is in it: Widget it/kept"
    assert await Webhook(Server({widgets: [labelled("Always", namespace="it", **owned)]})).ask(namespace(None)) == ""
    assert await Webhook(Server({widgets: [labelled("Cascading", namespace="it")]})).ask(namespace(None)) == ""
    slices = "/apis/discovery.k8s.io/v1/namespaces/it/endpointslices"
    assert await Webhook(Server({slices: [kept]})).ask(namespace(None)) == ""


async def test_with_authorized_groups_a_namespace_goes_with_a_warning_about_what_was_not_looked_at() -> None:
    webhook = Webhook(groups=())
    response = msgspec.json.decode((await webhook.post(namespace(None))).body)["response"]
    assert response["allowed"]
    assert "objects of the API groups" in response["warnings"][0]
    assert "example.dev" in response["warnings"][0]
    assert not any("widgets" in path for path, _ in webhook.server.asked)


@pytest.mark.parametrize(
    ("owned", "user", "passes"),
    [
        (True, "system:kube-controller-manager", True),
        (True, "alice", False),
        (False, "system:kube-controller-manager", False),
    ],
)
async def test_a_replica_set_of_a_labelled_template_may_be_deleted_by_its_controller_alone(
    owned: bool, user: str, passes: bool
) -> None:
    metadata = {"ownerReferences": [{"controller": True}]} if owned else {}
    body = review("ReplicaSet", labelled("Always", metadata=metadata), group="apps", userInfo={"username": user})
    assert (await Webhook().ask(body) == "") is passes


async def test_an_object_of_any_kind_is_denied_unless_a_controller_owns_it() -> None:
    owned: dict[str, Any] = {"metadata": {"ownerReferences": [{"controller": True}]}}
    resource: dict[str, Any] = {"resource": {"group": "example.dev", "version": "v2", "resource": "widgets"}}
    body = review("Widget", labelled("Always", namespace="it"), group="example.dev", **resource)
    told = await Webhook().ask(body)
    assert told.startswith(f"{P} {LABEL}=Always")
    assert f"kubectl label widgets.example.dev/it -n it {LABEL}-" in told
    assert await Webhook().ask(review("Widget", labelled("Always", **owned), group="example.dev")) == ""
    assert await Webhook().ask(review("EndpointSlice", labelled("Always"), group="discovery.k8s.io")) == ""


async def test_what_is_found_is_said_although_something_else_failed() -> None:
    server = Server({PODS: [pod()]})
    server.broken[CONFIG_MAPS] = ServerAnswer(500, b"oh")
    assert "active pods 1>0" in await Webhook(server).ask(namespace("Cascading"))


async def test_a_server_that_does_not_answer_in_time_keeps_the_namespace() -> None:
    server = Server()
    server.broken[PODS] = server.broken[CONFIG_MAPS] = None
    for seconds in (0.05, 0.0):
        told = await Webhook(server).ask(namespace("Cascading"), seconds=seconds)
        assert told.startswith(f"{P} list pods error: the API server timed out")
        told = await Webhook(server).ask(namespace(None), seconds=seconds)
        assert told.startswith(f"{P} list protected objects error: the API server timed out; retry")


async def test_a_namespace_with_something_protected_in_it_is_denied_and_names_it() -> None:
    held = ObjectRef(kind="Secret", namespace="it", name="key")
    told = await Webhook(known=Known(protected=(held,))).ask(namespace(None))
    assert told == f"{P} {LABEL} of what is in it: Secret it/key"

    there = {
        CONFIG_MAPS: [labelled("Always", "a", namespace="it"), labelled("Cascading", "b", namespace="it")],
        "/apis/apps/v1/namespaces/it/deployments": [
            labelled("Cascading", "c", namespace="it", spec={"replicas": 0}),
            labelled("Cascading", "d", namespace="it", spec={"replicas": 1}),
            labelled("Always", "e", namespace="it", **GOING),
        ],
        "/apis/apps.kruise.io/v1beta1/namespaces/it/statefulsets": [labelled("typo", "f", namespace="it")],
        "/api/v1/namespaces/it/services": [labelled(None, "g", namespace="it")],
    }
    told = await Webhook(Server(there)).ask(namespace(None))
    named = set(told.removeprefix(f"{P} {LABEL} of what is in it: ").split(", "))
    assert named == {"ConfigMap it/a", "Deployment it/d", "StatefulSet it/f"}


async def test_of_many_protected_objects_a_few_are_named() -> None:
    there = {CONFIG_MAPS: [labelled("Always", f"a{number}", namespace="it") for number in range(50)]}
    assert (await Webhook(Server(there)).ask(namespace(None))).count("ConfigMap") == 5


# CRDs


async def test_a_crd_is_denied_while_there_is_something_of_it() -> None:
    there = [labelled(None, "a", namespace="x"), labelled(None, "b", namespace="y", **GOING)]
    assert "Cascading and active CRs 1>0" in await Webhook(Server({WIDGETS: there})).ask(definition("Cascading"))
    assert await Webhook(Server({WIDGETS: there[1:]})).ask(definition("Cascading")) == ""
    assert await Webhook(Server({WIDGETS: there})).ask(definition(None)) == ""


async def test_a_crd_with_more_than_a_page_of_resources_says_how_many() -> None:
    there = [labelled(None, f"a{number}", namespace="x") for number in range(1_234)]
    server = Server({WIDGETS: there})
    assert "active CRs 1234>0" in await Webhook(server).ask(definition("Cascading"))


async def test_a_crd_without_a_label_is_denied_while_something_of_it_is_protected() -> None:
    there = [labelled("Always", "a", namespace="x"), labelled("Cascading", "b", namespace="x"), labelled(None, "c")]
    told = await Webhook(Server({WIDGETS: there})).ask(definition(None))
    assert told == f"{P} {LABEL} of what is of it: Widget x/a"


async def test_crds_of_v1beta1_are_understood() -> None:
    server = Server({"/apis/example.dev/v1alpha1/widgets": [labelled(None, "a")]})
    old = {"spec": {"group": "example.dev", "names": {"plural": "widgets", "kind": "Widget"}, "version": "v1alpha1"}}
    body = review("CustomResourceDefinition", labelled("Cascading") | old, group=CRDS, version="v1beta1")
    assert "active CRs 1>0" in await Webhook(server).ask(body)


async def test_a_crd_whose_resources_cannot_be_listed_stays_with_and_without_a_label() -> None:
    server = Server()
    server.broken[WIDGETS] = ServerAnswer(404, b"404 page not found\n")
    assert "list CRs error" in await Webhook(server).ask(definition("Cascading"))
    assert "list protected objects error" in await Webhook(server).ask(definition(None))
    unserved = [{"name": "v1", "served": False, "storage": True}]
    for label, what in (("Cascading", "CRs"), (None, "protected objects")):
        told = await Webhook().ask(definition(label, versions=unserved))
        assert told.startswith(f"{P} list {what} error: no version of the CRD is served")
        assert "set served: true" in told


async def test_a_crd_of_a_group_that_may_not_be_read_is_denied_for_that_reason() -> None:
    webhook = Webhook(groups=("other.dev",))
    for label, what in (("Cascading", "CRs"), (None, "protected objects")):
        told = await webhook.ask(definition(label))
        said = "the manager may not read the API group example.dev; add it to --authorized-groups"
        assert told.startswith(f"{P} list {what} error: {said}")
    assert webhook.server.asked == []
    for label in ("Cascading", None):
        assert await Webhook(groups=("example.dev",)).ask(definition(label)) == ""


async def test_a_crd_whose_spec_cannot_be_read_does_not_pass() -> None:
    body = review("CustomResourceDefinition", labelled("Cascading", spec={"versions": 1}), group=CRDS)
    assert (await Webhook().ask(body)).startswith("400 cannot decode the CRD")


# The label


def written(value: str | None, *, before: str | None = None, created: bool = False, **more: Any) -> bytes:
    old = None if created else labelled(before)
    operation = "CREATE" if created else "UPDATE"
    return review("Service", old, new=labelled(value, **more), operation=operation)


@pytest.mark.parametrize("created", [True, False])
async def test_a_value_that_nobody_knows_is_refused_when_it_is_new(created: bool) -> None:
    told = await Webhook().label(written("always", created=created))
    assert told == f"{P} {LABEL}=always: unknown value (valid: Always, Cascading)"


@pytest.mark.parametrize(
    "body",
    [
        written("Always"),
        written("Cascading", created=True),
        written(None, before="always"),
        written("always", before="always"),
        written("always", metadata={"ownerReferences": [{"controller": True}]}),
        review("Service", labelled("always"), operation="DELETE"),
        review("Service", None, new=labelled("x"), operation="CREATE", subResource="status"),
        review(
            "PersistentVolumeClaim",
            None,
            new=labelled("x"),
            operation="CREATE",
            userInfo={"username": "a", "groups": ["system:serviceaccounts:kube-system"]},
        ),
    ],
)
async def test_other_writes_pass(body: bytes) -> None:
    assert await Webhook().label(body) == ""


async def test_where_cascading_says_nothing_it_is_not_known_either() -> None:
    body = review("Cluster", None, group="cluster.x-k8s.io", new=labelled("Cascading"), operation="CREATE")
    assert "(valid for a Cluster: Always)" in await Webhook().label(body)
