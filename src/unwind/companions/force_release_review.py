"""Force-release of clusters that TeardownPolicies hold: it counts only from users who may update those policies.

Users who may write a Cluster can set the annotation. A release overrules the policies that hold the cluster, so
the API server is asked whether the user may update each of them (SubjectAccessReview). If not, the release is ignored,
and the Teardown says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.capi import CLUSTERS
from unwind.api.meta import find, with_condition
from unwind.api.names import (
    FORCE_RELEASE_BY_ANNOTATION,
    FORCE_RELEASE_GROUPS_ANNOTATION,
    RELEASE_REVIEW_FIELD_MANAGER,
    UNKNOWN_USER,
    ConditionType,
    Reason,
)
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import SUBJECT_ACCESS_REVIEWS
from unwind.api.unwind import TEARDOWNS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.unwind import PolicyRef, Teardown
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder

log = logs.get(__name__)


class ReleaseReview:
    """Decides whether a force-release counts."""

    def __init__(self, client: Client, recorder: Recorder | None = None, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock

    async def __call__(self, teardown: Teardown, annotations: Mapping[str, str], /) -> bool:
        """Whether the user who requests the release may update each policy that the teardown enforces."""
        enforcing = [policy for policy in teardown.spec.policies if policy.enforces]
        user = annotations.get(FORCE_RELEASE_BY_ANNOTATION, "")
        groups = annotations.get(FORCE_RELEASE_GROUPS_ANNOTATION, "").split("\n")
        refused = [
            policy.name
            for policy in enforcing
            if await self._is_there(policy) and not await self._may_update(policy, user, [it for it in groups if it])
        ]
        if refused:
            await self._report(teardown, user or UNKNOWN_USER, refused)
        return not refused

    async def _is_there(self, policy: PolicyRef) -> bool:
        """Whether there is a policy with this name. If its writers have deleted it, no decision is overruled.

        One with another uid counts as well: `kubectl replace --force` and GitOps create a policy again.
        """
        try:
            await self._client.get(TEARDOWN_POLICIES, policy.name)
        except NotFoundError:
            return False
        return True

    async def _may_update(self, policy: PolicyRef, user: str, groups: list[str]) -> bool:
        if not user:
            return False
        attributes = {
            "group": TEARDOWN_POLICIES.group,
            "version": TEARDOWN_POLICIES.version,
            "resource": TEARDOWN_POLICIES.plural,
            "name": policy.name,
            "verb": "update",
        }
        body = {
            "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SUBJECT_ACCESS_REVIEWS.kind,
            "metadata": {},
            "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
        }
        decided = await self._client.create(SUBJECT_ACCESS_REVIEWS, body)
        return (decided.get("status") or {}).get("allowed") is True

    async def _report(self, teardown: Teardown, user: str, policies: list[str]) -> None:
        message = (
            f"the force-release by {user} is ignored: it needs the right to update TeardownPolicy"
            f" {', '.join(sorted(policies))}; a user with this right can release it"
        )
        before = find(teardown.status.conditions, ConditionType.RELEASE_IGNORED)
        if before and before.message == message:
            return
        conditions = with_condition(
            (before,) if before else (),
            type=ConditionType.RELEASE_IGNORED,
            status=True,
            reason=Reason.NO_RIGHT,
            message=message,
            generation=teardown.metadata.generation,
            now=self._clock.now(),
        )
        body = {
            "apiVersion": TEARDOWNS.api_version,
            "kind": TEARDOWNS.kind,
            "metadata": {"name": teardown.metadata.name, "uid": teardown.metadata.uid},
            "status": {"conditions": msgspec.to_builtins(conditions)},
        }
        try:
            # With a field manager of its own: the others do not remove it.
            await self._client.apply(TEARDOWNS, body, subresource="status", field_manager=RELEASE_REVIEW_FIELD_MANAGER)
        except UnwindError as error:
            why = f"{error}; the Event ReleaseIgnored on the Cluster says the same"
            log.warning("condition ReleaseIgnored not written", teardown=teardown.metadata.name, why=why)
        log.warning("release ignored", teardown=teardown.metadata.name, user=user, policies=sorted(policies))
        if self._recorder:
            ref = teardown.spec.target
            regarding = Regarding(CLUSTERS.api_version, ref.kind, ref.name, ref.uid, ref.namespace)
            self._recorder.report(regarding, ConditionType.RELEASE_IGNORED, message, action="Release", type="Warning")
