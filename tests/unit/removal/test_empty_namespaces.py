"""When a Namespace counts as removed for the order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.removal.making import content
from unwind.api.meta import ObjectRef
from unwind.deleters.outcomes import Again
from unwind.members.member import Member
from unwind.removal.empty_namespaces import is_default_content, only_waits_for_kubernetes, reports_content, until_empty
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unwind.kube.transport import ServerAnswer
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


SHOP = ObjectRef(version="v1", kind="Namespace", name="shop", uid="shop")
READ = "GET /api/v1/namespaces/shop"


class WatchedObjects(Objects):
    """A fake API server with a Namespace. Another client acts after the first list of its content."""

    def __init__(self, *, meanwhile: Callable[[WatchedObjects], None] = lambda _: None) -> None:
        super().__init__({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "uid": "shop"}})
        self._meanwhile = meanwhile
        self._listed = False

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        answer = await super().request(method, target, body=body, headers=headers, within=within)
        if f"{method} {target}".startswith(f"{READ}/") and not self._listed:
            self._listed = True
            self._meanwhile(self)
        return answer

    def delete_namespace(self) -> None:
        # As a whole: the fake does not know `spec.finalizers`, and would remove it.
        metadata = {"name": "shop", "uid": "shop", **DELETED}
        self.put(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {"finalizers": ["kubernetes"]}}
        )

    def create_and_delete_namespace(self) -> None:
        self.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "data", "namespace": "shop"}})
        self.delete_namespace()

    async def until_empty(self) -> None:
        member = Member(ObjectRef(kind="Cluster", name="prod"), self.client, system_uid="standin")
        member.watches = self.watches
        await until_empty(member, SHOP)


async def test_the_content_of_a_namespace_is_listed_after_a_read_that_shows_its_deletion() -> None:
    objects = WatchedObjects()
    objects.delete_namespace()
    await objects.until_empty()
    about = [request for request in objects.requests if request.startswith(READ)]
    assert about[0] == READ
    assert len(about) > 1
    assert all(request.startswith(f"{READ}/") for request in about[1:])


async def test_a_namespace_is_not_empty_if_something_was_created_between_the_lists_and_its_deletion() -> None:
    objects = WatchedObjects(meanwhile=WatchedObjects.create_and_delete_namespace)
    with pytest.raises(Again, match="waiting until Namespace shop is empty"):
        await objects.until_empty()
