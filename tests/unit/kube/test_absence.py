"""An object is absent only if the right server reports it, by name."""

from __future__ import annotations

import msgspec
import pytest

from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS
from unwind.kube.absence import Presence, Sighting, from_answer, on_cluster


def status(reason: str = "NotFound", **details: str) -> bytes:
    return msgspec.json.encode(
        {"kind": "Status", "apiVersion": "v1", "reason": reason, "message": "not found", "details": details}
    )


def seen(code: int, body: bytes) -> Presence:
    return from_answer(code, body, resource=CONFIG_MAPS, name="a", uid="1", namespace="n").presence


def shown(uid: str, *, kind: str = "ConfigMap", name: str = "a", namespace: str = "n") -> bytes:
    return msgspec.json.encode({"kind": kind, "metadata": {"uid": uid, "name": name, "namespace": namespace}})


@pytest.mark.parametrize(
    ("code", "body", "presence"),
    [
        (200, shown("1"), Presence.PRESENT),
        (200, shown("2"), Presence.ABSENT),
        (200, shown("2", name="b"), Presence.UNKNOWN),
        (200, shown("2", namespace="m"), Presence.UNKNOWN),
        (200, shown("2", kind="Secret"), Presence.UNKNOWN),
        (200, b'{"metadata": {"uid": "2"}}', Presence.UNKNOWN),
        (404, status(name="a", kind="configmaps"), Presence.ABSENT),
        (404, status(name="b", kind="configmaps"), Presence.UNKNOWN),
        (404, status(name="a", kind="secrets"), Presence.UNKNOWN),
        (404, status(name="a", kind="configmaps", group="example.com"), Presence.UNKNOWN),
        (404, status(), Presence.UNKNOWN),
        (404, b"404 page not found", Presence.UNKNOWN),
        (404, b"<html>nothing here</html>", Presence.UNKNOWN),
        (403, status("Forbidden", name="a", kind="configmaps"), Presence.UNKNOWN),
        (410, status("Gone", name="a", kind="configmaps"), Presence.UNKNOWN),
        (500, status(name="a", kind="configmaps"), Presence.UNKNOWN),
        (200, b"<html>welcome</html>", Presence.UNKNOWN),
        (200, b"{}", Presence.UNKNOWN),
        (200, b"[]", Presence.UNKNOWN),
    ],
)
def test_each_answer_means_what_it_proves_and_no_more(code: int, body: bytes, presence: Presence) -> None:
    assert seen(code, body) is presence


def test_the_group_of_the_resource_has_to_be_named() -> None:
    body = status(name="a", kind="deployments", group="apps")
    assert from_answer(404, body, resource=DEPLOYMENTS, name="a", uid="1").absent


@pytest.mark.parametrize(
    ("found", "presence"), [("here", Presence.ABSENT), ("elsewhere", Presence.UNKNOWN), (None, Presence.UNKNOWN)]
)
def test_an_absence_counts_only_from_the_cluster_that_had_the_object(found: str | None, presence: Presence) -> None:
    absent = Sighting(Presence.ABSENT, "it said so")
    assert on_cluster(absent, expected="here", found=found).presence is presence


def test_what_is_present_is_present_wherever() -> None:
    present = Sighting(Presence.PRESENT, "it showed it")
    assert on_cluster(present, expected="here", found="elsewhere") is present
