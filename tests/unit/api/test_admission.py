"""Admission reviews are decoded in both versions, and answered in the version of the request."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from unwind.api import admission

V1, V1BETA1 = "admission.k8s.io/v1", "admission.k8s.io/v1beta1"


def review(version: str, **request: Any) -> bytes:
    return msgspec.json.encode({"apiVersion": version, "kind": "AdmissionReview", "request": request})


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_every_answer_has_the_number_and_the_version_of_its_question(version: str) -> None:
    # Whatever the request itself contains.
    for more in ({}, {"apiVersion": "x"}):
        asked = admission.admission_request(review(version, uid="q", **more))
        for answer in (
            admission.allowed(asked),
            admission.denied(asked, "no"),
            admission.unreadable(asked, "what?"),
            admission.patched(asked, [{"op": "remove", "path": "/x"}]),
        ):
            told = msgspec.json.decode(answer)
            assert (told["apiVersion"], told["kind"]) == (version, "AdmissionReview")
            assert told["response"]["uid"] == "q"


def test_a_refusal_has_a_code_a_reason_and_a_message() -> None:
    asked = admission.admission_request(review(V1, uid="q"))
    said = {"code": 403, "reason": "Forbidden", "message": "no"}
    assert msgspec.json.decode(admission.denied(asked, "no"))["response"] == {
        "uid": "q",
        "allowed": False,
        "status": said,
    }
    said = {"code": 400, "reason": "BadRequest", "message": "what?"}
    assert msgspec.json.decode(admission.unreadable(asked, "what?"))["response"]["status"] == said


def test_a_patch_is_sent_in_base64() -> None:
    asked, patch = admission.admission_request(review(V1, uid="q")), [{"op": "remove", "path": "/x"}]
    response = msgspec.json.decode(admission.patched(asked, patch))["response"]
    assert response["patchType"] == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == patch


def test_what_is_asked_is_read() -> None:
    asked = admission.admission_request(
        review(
            V1BETA1,
            uid="q",
            kind={"group": "apps", "version": "v1", "kind": "Deployment"},
            subResource="scale",
            operation="DELETE",
            dryRun=True,
            userInfo={"username": "alice", "groups": ["a", "b"], "extra": {"x": ["y"]}},
            oldObject={"metadata": {"name": "web"}},
        )
    )
    assert (asked.kind.group, asked.kind.version, asked.kind.kind) == ("apps", "v1", "Deployment")
    assert (asked.sub_resource, asked.operation, asked.dry_run) == ("scale", "DELETE", True)
    assert (asked.user_info.username, asked.user_info.groups) == ("alice", ("a", "b"))
    assert asked.user_info.extra == {"x": ["y"]}
    assert msgspec.json.decode(asked.old_object) == {"metadata": {"name": "web"}}
    assert msgspec.json.decode(asked.object) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        review("admission.k8s.io/v2", uid="q"),
        review(V1),
        review(V1, uid=""),
        review(V1, uid="q", dryRun="yes"),
    ],
)
def test_what_is_no_review_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"^cannot decode AdmissionReview: "):
        admission.admission_request(body)


def test_of_a_review_that_cannot_be_read_the_number_is_known_if_it_has_one() -> None:
    asked = admission.barely(review(V1BETA1, uid="q", dryRun="yes"))
    assert asked
    assert (asked.uid, asked.api_version) == ("q", V1BETA1)
    for body in (b"", b"[]", b"[" * 100_000, review(V1), review(V1, uid=7), review("v2", uid="q")):
        assert admission.barely(body) is None


def test_a_review_in_which_something_stands_twice_is_answered_under_its_number() -> None:
    body = b'{"apiVersion": "admission.k8s.io/v1", "request": "no", "request": {"uid": "one", "kind": 1}}'
    with pytest.raises(ValueError, match="cannot decode AdmissionReview"):
        admission.admission_request(body)
    found = admission.barely(body)
    assert found
    assert (found.uid, found.api_version) == ("one", "admission.k8s.io/v1")
