"""What is never deleted on request, or not in this way."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.removal.making import content
from unwind.members.contents import Content
from unwind.preview.removal_forecast import out_of_bounds
from unwind.removal.deletion_scope import divide


def whole(kind: str, name: str, *, group: str = "") -> Content:
    it = content(kind, name, group=group)
    return Content(it.resource, msgspec.structs.replace(it.metadata, namespace=""))


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease", "unwind-system"])
def test_the_namespaces_of_kubernetes_and_of_unwind_stay(name: str) -> None:
    assert out_of_bounds(divide(whole("Namespace", name), [], []), home="unwind-system")


def test_the_records_of_unwind_and_their_kinds_stay() -> None:
    crd = whole("CustomResourceDefinition", "teardowns.unwind.dev", group="apiextensions.k8s.io")
    assert out_of_bounds(divide(crd, [], []), home="u")
    assert out_of_bounds(divide(whole("Teardown", "t", group="unwind.dev"), [], []), home="u")
    other = whole("CustomResourceDefinition", "teardowns.example.dev", group="apiextensions.k8s.io")
    assert not out_of_bounds(divide(other, [], []), home="u")


def test_a_cluster_is_deleted_as_such_and_never_with_its_namespace() -> None:
    cluster = content("Cluster", "prod", group="cluster.x-k8s.io")
    assert "must be deleted directly" in out_of_bounds(divide(cluster, [], []), home="u")[0].why
    told = out_of_bounds(divide(whole("Namespace", "fleet"), [cluster], [cluster]), home="u")
    assert [(item.object.kind, "delete Cluster room/prod first" in item.why) for item in told] == [("Cluster", True)]


def test_anything_else_is_within_bounds() -> None:
    assert out_of_bounds(divide(whole("Namespace", "shop"), [content("Pod", "p")], []), home="u") == []
    assert out_of_bounds(divide(content("Machine", "m", group="cluster.x-k8s.io"), [], []), home="u") == []
