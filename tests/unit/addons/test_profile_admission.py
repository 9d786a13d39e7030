"""What the API server is answered about a profile, as bytes in and bytes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unwind.addons import profile_admission
from unwind.errors import UnwindError
from unwind.planning.dependency_graph import Declared
from unwind.server.routes import Request, Response

REQUEST = Request(method="POST", path="/admit/profiles", query="", headers={}, peer="127.0.0.1", ends=0.0)


def profile(name: str, *needs: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"metadata": metadata, "spec": {"dependsOn": list(needs)}}


def review(new: object, old: object = None, *, kind: str = "ClusterProfile", namespace: str = "") -> bytes:
    asked = {
        "uid": "of-the-question",
        "kind": {"group": "config.projectsveltos.io", "version": "v1beta1", "kind": kind},
        "operation": "UPDATE" if old else "CREATE",
        "namespace": namespace,
        "object": new,
        "oldObject": old,
        "dryRun": True,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked})


class There:
    """The profiles that exist, and whether anybody wanted to know."""

    def __init__(self, *profiles: Declared) -> None:
        self.profiles = profiles
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, kind: str, namespace: str) -> list[Declared]:
        self.asked.append((kind, namespace))
        return list(self.profiles)


def declared(name: str, *needs: str, kind: str = "ClusterProfile", namespace: str = "") -> Declared:
    return Declared(kind=kind, namespace=namespace, name=name, depends_on=needs)


async def answered(there: profile_admission.Existing, body: bytes) -> dict[str, Any]:
    response = await profile_admission.answer(there, body, REQUEST)
    assert response.status == 200
    document = msgspec.json.decode(response.body)
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert document["response"]["uid"] == "of-the-question"
    told: dict[str, Any] = document["response"]
    return told


async def test_the_write_that_closes_a_cycle_is_denied_and_the_cycle_is_named() -> None:
    there = There(declared("a", "b"), declared("b", "c"))
    told = await answered(there, review(profile("c", "a")))
    assert told["allowed"] is False
    assert (told["status"]["code"], told["status"]["reason"]) == (403, "Forbidden")
    assert told["status"]["message"] == (
        "ClusterProfile c: dependency cycle a → b → c → a; "
        "remove a from its dependsOn, or break the cycle at another profile first"
    )


async def test_a_profile_that_depends_on_itself_is_denied() -> None:
    told = await answered(There(), review(profile("a", "a")))
    assert told["allowed"] is False
    assert told["status"]["message"].endswith("dependency cycle a → a; remove a from its dependsOn")


async def test_a_chain_is_allowed() -> None:
    there = There(declared("a", "b"), declared("b"))
    assert await answered(there, review(profile("c", "a", "b"))) == {"uid": "of-the-question", "allowed": True}


async def test_whoever_changes_something_else_of_a_profile_in_a_cycle_is_not_asked_about_it() -> None:
    there = There(declared("a", "b"), declared("b", "a"))
    told = await answered(there, review(profile("a", "b"), profile("a", "b")))
    assert told["allowed"] is True
    assert there.asked == []


async def test_whoever_leaves_one_cycle_and_enters_another_is_denied() -> None:
    there = There(declared("a", "b"), declared("b", "a"), declared("c", "a"))
    told = await answered(there, review(profile("a", "c"), profile("a", "b")))
    assert "a → c → a" in told["status"]["message"]


async def test_what_the_server_says_it_was_counts_more_than_what_was_read() -> None:
    """The list may be older than the review: what stands there of this profile itself must not be held against it."""
    there = There(declared("a"), declared("b", "a"))
    told = await answered(there, review(profile("a", "b", "x"), profile("a", "b")))
    assert told["allowed"] is True
    assert there.asked


async def test_profiles_of_another_namespace_are_others() -> None:
    there = There(declared("b", "a", kind="Profile", namespace="theirs"))
    body = review(profile("a", "b", namespace="ours"), kind="Profile", namespace="ours")
    assert (await answered(there, body))["allowed"] is True
    assert there.asked == [("Profile", "ours")]
    there = There(declared("b", "a", kind="Profile", namespace="ours"))
    told = await answered(there, body)
    assert "Profile ours/a: dependency cycle a → b → a" in told["status"]["message"]


async def test_what_is_deleted_and_what_is_no_profile_is_allowed() -> None:
    there = There(declared("b", "a"))
    for body in (review(None, profile("a", "b")), review(profile("a", "b"), kind="Bucket")):
        assert (await answered(there, body))["allowed"] is True
    assert there.asked == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cannot decode AdmissionReview"),
        (b"\xff{}", "cannot decode AdmissionReview"),
        (b"{}", "got apiVersion ''"),
        (b'{"apiVersion": "admission.k8s.io/v2", "request": {"uid": "u"}}', "got apiVersion 'admission.k8s.io/v2'"),
        (b'{"apiVersion": "admission.k8s.io/v1", "request": {}}', "with a request, got"),
        (review({"spec": {"dependsOn": "b"}}), "cannot decode the profile"),
    ],
)
async def test_what_cannot_be_read_is_answered_with_400_and_a_sentence(body: bytes, said: str) -> None:
    response = await profile_admission.answer(There(), body, REQUEST)
    assert response.status == 400
    assert said in _message(response)


async def test_while_the_others_cannot_be_read_nothing_is_claimed() -> None:
    async def unreachable(kind: str, namespace: str) -> list[Declared]:
        raise UnwindError("the API server does not answer")

    response = await profile_admission.answer(unreachable, review(profile("a", "b")), REQUEST)
    assert response.status == 503
    assert "the API server does not answer" in _message(response)


def _message(response: Response) -> str:
    message: str = msgspec.json.decode(response.body)["message"]
    return message
