"""When a Namespace counts as removed for the order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.removal.making import content
from unwind.removal.empty_namespaces import is_default_content, only_waits_for_kubernetes, reports_content

if TYPE_CHECKING:
    from unwind.members.contents import Content

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("metadata", "spec", "only_waits"),
    [
        (DELETED, {"finalizers": ["kubernetes"]}, True),
        (DELETED, {}, True),
        (DELETED, {"finalizers": None}, True),
        ({}, {"finalizers": ["kubernetes"]}, False),
        (DELETED, {"finalizers": ["kubernetes", "example.dev/hold"]}, False),
        (DELETED, {"finalizers": ["example.dev/hold"]}, False),
        (DELETED | {"finalizers": ["example.dev/hold"]}, {"finalizers": ["kubernetes"]}, False),
        (DELETED | {"finalizers": ["kubernetes"]}, {"finalizers": ["kubernetes"]}, False),
        (DELETED | {"finalizers": []}, {"finalizers": ["kubernetes"]}, True),
    ],
)
def test_a_namespace_only_waits_for_kubernetes_if_nothing_else_finalizes_it(
    metadata: dict[str, Any], spec: dict[str, Any], only_waits: bool
) -> None:
    assert only_waits_for_kubernetes({"metadata": metadata, "spec": spec}) is only_waits


@pytest.mark.parametrize(
    ("it", "default"),
    [
        (content("ConfigMap", "kube-root-ca.crt"), True),
        (content("ServiceAccount", "default"), True),
        (content("ConfigMap", "default"), False),
        (content("ConfigMap", "kube-root-ca.crt2"), False),
        (content("ServiceAccount", "kube-root-ca.crt"), False),
        (content("ConfigMap", "kube-root-ca.crt", group="example.dev"), False),
        (content("ServiceAccount", "default", group="example.dev"), False),
        (content("ConfigMap", "kube-root-ca.crt", finalizers=("example.dev/hold",)), False),
        (content("ServiceAccount", "default", finalizers=("example.dev/hold",)), False),
        (content("ServiceAccount", "default", "owner"), False),
        (content("Secret", "token", annotations={"kubernetes.io/service-account.name": "default"}), False),
    ],
)
def test_default_content_is_known_by_its_exact_kind_and_name_and_holds_nothing(it: Content, default: bool) -> None:
    assert is_default_content(it) is default


@pytest.mark.parametrize(
    ("conditions", "reports"),
    [
        (None, False),
        ([], False),
        ([{"type": "NamespaceContentRemaining", "status": "False"}], False),
        ([{"type": "NamespaceContentRemaining", "status": "True"}], True),
        ([{"type": "NamespaceFinalizersRemaining", "status": "True"}], True),
        ([{"type": "NamespaceDeletionContentFailure", "status": "True"}], True),
        ([{"type": "example.dev/Ready", "status": "True"}], False),
    ],
)
def test_the_namespace_controller_reports_content_in_conditions(conditions: Any, reports: bool) -> None:
    assert reports_content({"metadata": {}, "status": {"conditions": conditions}}) is reports
