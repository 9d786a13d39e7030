"""Rights that were granted and never used, from an audit log."""

from __future__ import annotations

import msgspec

from unwind.api.features import ALL, DEFAULT
from unwind.local.audit_log import AuditEvent
from unwind.testing.used_rights import RARELY_USED, UsedRight, granted_rights, rights_used, unused


def entry(
    verb: str, resource: str, group: str = "", code: int = 200, *, namespace: str = "", **more: object
) -> AuditEvent:
    name, _, subresource = resource.partition("/")
    ref = {"resource": name, "subresource": subresource, "apiGroup": group, "namespace": namespace}
    event = {
        "verb": verb,
        "user": {"username": "system:serviceaccount:home:unwind"},
        "objectRef": ref,
        "responseStatus": {"code": code},
        **more,
    }
    return msgspec.convert(event, AuditEvent)


def test_each_verb_and_resource_is_granted_for_a_feature() -> None:
    found = granted_rights(ALL)
    assert found[UsedRight("patch", "clusters/status.cluster.karmada.io")] == "karmada"
    assert found[UsedRight("get", "inventories.unwind.dev", at_home=True)] == "namespace"
    assert found[UsedRight("list", "*")] == "protection"
    assert UsedRight("manage", "teardowns.unwind.dev") not in found, "no request has this verb"
    assert "addons" not in granted_rights(DEFAULT).values()


def test_requests_that_rbac_refused_have_used_nothing() -> None:
    refused = entry("list", "secrets", annotations={"authorization.k8s.io/decision": "forbid"})
    assert rights_used([refused]) == set()
    assert rights_used([entry("list", "secrets")]) == {UsedRight("list", "secrets")}


def test_an_apply_that_creates_needs_both_verbs() -> None:
    assert rights_used([entry("patch", "leases", "coordination.k8s.io", 201)]) == {
        UsedRight("patch", "leases.coordination.k8s.io"),
        UsedRight("create", "leases.coordination.k8s.io"),
    }


def test_what_was_not_used_is_told_with_its_feature() -> None:
    seen = rights_used([entry("patch", "clusters/status", "cluster.karmada.io")])
    found = unused(ALL, seen)
    assert "karmada: patch works/status.work.karmada.io" in found
    assert "karmada: patch clusters/status.cluster.karmada.io" not in found


def test_a_request_in_its_namespace_does_not_prove_the_need_for_a_cluster_wide_rule() -> None:
    at_home, elsewhere = "namespace: list pods in its namespace", "protection: list pods"
    seen = rights_used([entry("list", "pods", namespace="home")])
    assert at_home not in unused(ALL, seen)
    assert elsewhere in unused(ALL, seen)
    seen = rights_used([entry("list", "pods", namespace="other")])
    assert at_home in unused(ALL, seen)
    assert elsewhere not in unused(ALL, seen)
    # Nothing but the cluster-wide rule allows it in its namespace.
    assert "karmada: list works.work.karmada.io" not in unused(
        ALL, rights_used([entry("list", "works", "work.karmada.io", namespace="home")])
    )


def test_the_rule_for_all_resources_is_used_by_a_kind_that_no_other_rule_names() -> None:
    every = "protection: list *"
    assert every in unused(ALL, rights_used([entry("list", "pods")]))
    assert every not in unused(ALL, rights_used([entry("list", "widgets", "example.dev")]))


def test_rights_that_only_failures_need_are_granted_and_have_a_reason() -> None:
    assert RARELY_USED.keys() <= granted_rights(ALL).keys()
    assert all(RARELY_USED.values())
