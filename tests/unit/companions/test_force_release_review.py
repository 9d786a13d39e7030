"""Whose right a force-release of a cluster needs, if its policy was deleted or created again meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import FORCE_RELEASE_BY_ANNOTATION
from unwind.api.resources import SUBJECT_ACCESS_REVIEWS
from unwind.api.unwind import PolicyRef, Teardown, TeardownSpec
from unwind.companions.force_release_review import ReleaseReview
from unwind.kube.errors import APIStatus, NotFoundError

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

RECORDED = PolicyRef(name="prod", uid="1", generation=1, enforces=True)
TEARDOWN = Teardown(
    metadata=ObjectMeta(name="t", uid="t"),
    spec=TeardownSpec(target=ObjectRef(kind="Cluster", namespace="shop", name="prod", uid="c"), policies=(RECORDED,)),
)


class Server:
    """An API server with a policy of this uid, or without one. `allowed`: who may update it."""

    def __init__(self, uid: str | None, allowed: str = "") -> None:
        self._uid = uid
        self._allowed = allowed
        self.told = 0

    async def get(self, resource: Resource, name: str) -> Object:
        if self._uid is None:
            raise NotFoundError(APIStatus(code=404, reason="NotFound"), request=f"GET {resource.plural}/{name}")
        return {"metadata": {"name": name, "uid": self._uid}}

    async def create(self, resource: Resource, body: Object) -> Object:
        assert resource == SUBJECT_ACCESS_REVIEWS
        assert body["spec"]["resourceAttributes"]["name"] == "prod"
        return {"status": {"allowed": body["spec"]["user"] == self._allowed}}

    async def apply(self, resource: Resource, body: Object, **options: Any) -> None:
        self.told += 1


@pytest.mark.parametrize("uid", ["1", "2"], ids=["the policy", "created again"])
async def test_a_release_needs_the_right_to_update_the_policy_of_this_name(uid: str) -> None:
    """`kubectl replace --force`, and GitOps that applies with force, create a policy again: its veto stays."""
    server = Server(uid, allowed="kim")
    review = ReleaseReview(cast("Any", server))
    assert await review(TEARDOWN, {FORCE_RELEASE_BY_ANNOTATION: "jane"}) is False
    assert server.told == 1
    assert await review(TEARDOWN, {FORCE_RELEASE_BY_ANNOTATION: "kim"}) is True


async def test_a_policy_that_its_writers_have_deleted_has_no_veto() -> None:
    review = ReleaseReview(cast("Any", Server(None)))
    assert await review(TEARDOWN, {FORCE_RELEASE_BY_ANNOTATION: "jane"}) is True
