"""Rights that were granted and never used, from an audit log."""

from __future__ import annotations

import msgspec

from unwind.api.features import ALL, DEFAULT
from unwind.local.audit_log import AuditEvent
from unwind.testing.used_rights import UsedRight, granted, unused, used


def entry(verb: str, resource: str, group: str = "", code: int = 200, **more: object) -> AuditEvent:
    name, _, subresource = resource.partition("/")
    ref = {"resource": name, "subresource": subresource, "apiGroup": group}
    event = {"verb": verb, "user": {}, "objectRef": ref, "responseStatus": {"code": code}, **more}
    return msgspec.convert(event, AuditEvent)


def test_each_verb_and_resource_is_granted_for_a_feature() -> None:
    found = granted(ALL)
    assert found[UsedRight("patch", "clusters/status.cluster.karmada.io")] == "karmada"
    assert found[UsedRight("get", "inventories.unwind.dev")] == "namespace"
    assert UsedRight("manage", "teardowns.unwind.dev") not in found, "no request has this verb"
    assert "addons" not in granted(DEFAULT).values()


def test_requests_that_rbac_refused_have_used_nothing() -> None:
    refused = entry("list", "secrets", annotations={"authorization.k8s.io/decision": "forbid"})
    assert used([refused]) == set()
    assert used([entry("list", "secrets")]) == {UsedRight("list", "secrets")}


def test_an_apply_that_creates_needs_both_verbs() -> None:
    assert used([entry("patch", "leases", "coordination.k8s.io", 201)]) == {
        UsedRight("patch", "leases.coordination.k8s.io"),
        UsedRight("create", "leases.coordination.k8s.io"),
    }


def test_what_was_not_used_is_told_with_its_feature() -> None:
    seen = used([entry("patch", "clusters/status", "cluster.karmada.io")])
    found = unused(ALL, seen)
    assert "karmada: patch works/status.work.karmada.io" in found
    assert "karmada: patch clusters/status.cluster.karmada.io" not in found
