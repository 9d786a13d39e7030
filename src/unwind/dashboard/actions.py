"""Release and cancel a teardown from its page: what may be done, what would be left behind, and the request.

Everything is done with the rights of the person's kubeconfig. An access review decides whether a button is shown; the
API server decides whether it works.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import RESOURCE_ANNOTATION
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import NAMESPACES, SELF_SUBJECT_ACCESS_REVIEWS
from unwind.api.unwind import REASON_LENGTH, TEARDOWNS, Teardown
from unwind.cli import cancel, release
from unwind.clock import SYSTEM
from unwind.dashboard.step_objects import ObjectState, step_objects
from unwind.errors import UnwindError, UsageError
from unwind.kube.errors import NotFoundError
from unwind.teardown.requests import whoami

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client

# How long a list that was shown can be confirmed, in seconds, and how many of them.
_VALID = 900.0
_OPEN = 64


class Action(StrEnum):
    """What a person can do about a teardown."""

    RELEASE = "release"
    CANCEL = "cancel"


class NotAllowedError(UnwindError):
    """The person lacks a right, or did not confirm the list that was shown."""


class ActionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would do, as it is shown before it is confirmed."""

    action: Action
    teardown: Teardown
    title: str
    """The target, as it was read: not what the Teardown says about it."""
    confirm: str
    """What a person types to confirm it."""
    left: tuple[ObjectRef, ...] = ()
    """The objects that are not verified absent: a release leaves them behind, and a cancelled deletion keeps them."""
    removed: int = 0
    unreadable: tuple[str, ...] = ()
    """Records that could not be read: the list is not complete."""

    @property
    def kinds(self) -> list[tuple[str, int]]:
        counts = Counter(ref.kind for ref in self.left)
        return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


class Confirmation(msgspec.Struct, frozen=True):
    """What a page sends to confirm an action."""

    confirmation: str = ""
    """The value that came with the list."""
    typed: str = ""
    reason: str = ""


class Confirmations:
    """The lists that were shown and not yet confirmed. Each can be confirmed once, and only for what it was shown."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._open: OrderedDict[str, tuple[float, ActionPreview]] = OrderedDict()

    def shown(self, preview: ActionPreview) -> str:
        """The value that confirms this list."""
        value = secrets.token_urlsafe(32)
        self._open[value] = (self._clock.monotonic(), preview)
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return value

    def taken(self, value: str, action: Action, name: str) -> ActionPreview:
        """The list that is confirmed. Raises NotAllowedError if there is none for this action and Teardown."""
        at, preview = self._open.pop(value, (0.0, None))
        if preview is None or self._clock.monotonic() - at > _VALID:
            raise NotAllowedError(
                f"cannot {action} Teardown {name}: the list of its objects was not shown, or too long ago",
                remedy="open the list again",
            )
        if (preview.action, preview.teardown.metadata.name) != (action, name):
            raise NotAllowedError(
                f"cannot {action} Teardown {name}: another list was shown", remedy="open the list again"
            )
        return preview


def possible(teardown: Teardown) -> Action | None:
    """What can be done about a Teardown in this state (pure)."""
    if release.can_be_released(teardown):
        return Action.RELEASE
    if cancel.can_be_cancelled(teardown) and not teardown.metadata.terminating:
        return Action.CANCEL
    return None


class Actions:
    """Releases and cancels with the rights of one person."""

    def __init__(self, client: Client, *, home: str, clock: Clock = SYSTEM) -> None:
        """`home`: Unwind's namespace, which has the Inventories."""
        self._client = client
        self._home = home
        self._confirmations = Confirmations(clock)

    async def offered(self, teardown: Teardown) -> Action | None:
        """What the person may do about a Teardown. Nothing if the API server does not say that they may."""
        action = possible(teardown)
        return action if action and not await self._lacking(action, teardown) else None

    async def preview(self, action: Action, name: str) -> tuple[ActionPreview, str]:
        """What an action would do, from fresh reads, and the value that confirms it."""
        teardown = await self._client.get(TEARDOWNS, name, type=Teardown)
        if possible(teardown) is not action:
            raise UnwindError(
                f"cannot {action} {teardown.spec.title}: it is {teardown.phase}",
                remedy="see its page for what it waits for",
            )
        if lacking := await self._lacking(action, teardown):
            raise NotAllowedError(
                f"cannot {action} {teardown.spec.title}: you may not {lacking}",
                remedy="ask an administrator for the right",
            )
        show = self._release_preview if action is Action.RELEASE else self._cancel_preview
        preview = await show(teardown)
        return preview, self._confirmations.shown(preview)

    async def carry_out(self, action: Action, name: str, sent: Confirmation) -> str:
        """Request what was confirmed, and return what to tell the person. Raises UnwindError if it is refused."""
        preview = self._confirmations.taken(sent.confirmation, action, name)
        if sent.typed != preview.confirm:
            raise UsageError(
                f"cannot {action} {preview.title}: the name is not {preview.confirm!r}",
                remedy="open the list again, and type it",
            )
        reason = sent.reason.strip()
        if not 0 < len(reason) <= REASON_LENGTH:
            raise UsageError(
                f"cannot {action} {preview.title}: the reason is empty or longer than {REASON_LENGTH} characters",
                remedy="state why you do this; it is recorded with your user name",
            )
        if action is Action.CANCEL:
            remark = await cancel.request_cancellation(self._client, preview.teardown, reason)
            told = f"Cancelled. The manager sends no further DELETE for {preview.title}."
            return f"{told} But {remark}." if remark else told
        target = await release.target_of(self._client, preview.teardown)
        remark = await release.request_release(self._client, target, reason)
        return remark or f"Release of {preview.title} requested. The manager records what is left in the ledger."

    async def _release_preview(self, teardown: Teardown) -> ActionPreview:
        target = await release.target_of(self._client, teardown)
        unreadable: list[str] = []
        left = await release.standing_objects(self._client, target, teardown, unreadable=unreadable.append)
        return ActionPreview(
            action=Action.RELEASE,
            teardown=teardown,
            title=str(target),
            confirm=target.metadata.name,
            left=tuple(left),
            unreadable=tuple(unreadable),
        )

    async def _cancel_preview(self, teardown: Teardown) -> ActionPreview:
        objects = await step_objects(self._client, teardown, home=self._home)
        left = [it.object for it in objects if it.state is not ObjectState.GONE]
        ref = teardown.spec.target
        return ActionPreview(
            action=Action.CANCEL,
            teardown=teardown,
            title=str(ref),
            confirm=ref.name,
            left=tuple(left),
            removed=len(objects) - len(left),
        )

    async def _lacking(self, action: Action, teardown: Teardown) -> str:
        """The right that the person lacks; empty if they have all."""
        return await (self._lacking_cancel(teardown) if action is Action.CANCEL else self._lacking_release(teardown))

    async def _lacking_cancel(self, teardown: Teardown) -> str:
        name, ref = teardown.metadata.name, teardown.spec.target
        if not await self._may("delete", TEARDOWNS.group, TEARDOWNS.plural, name):
            return f"delete Teardown {name}"
        # The same rule as that of admission: the requester, and users who may delete the target.
        if await whoami(self._client) == teardown.spec.requested_by:
            return ""
        plural = teardown.metadata.annotations.get(RESOURCE_ANNOTATION, "")
        is_namespace = (ref.group, ref.kind) == (NAMESPACES.group, NAMESPACES.kind)
        where = ref.name if is_namespace else ref.namespace
        if plural and await self._may("delete", ref.group, plural, ref.name, where):
            return ""
        return f"cancel a deletion that {teardown.spec.requested_by} has requested, nor delete its target"

    async def _lacking_release(self, teardown: Teardown) -> str:
        ref = teardown.spec.target
        resource = release.resource_of(ref)
        if not await self._may("patch", resource.group, resource.plural, ref.name, ref.namespace):
            return f"patch {ref}"
        # The manager ignores a release by a person who may not change the policies that hold the cluster.
        policies = TEARDOWN_POLICIES
        for policy in teardown.spec.policies:
            if (
                policy.enforces
                and not await self._may("update", policies.group, policies.plural, policy.name)
                and await self._exists(policies, policy.name)
            ):
                return f"update TeardownPolicy {policy.name}, which holds it"
        return ""

    async def _exists(self, resource: Resource, name: str) -> bool:
        try:
            await self._client.get(resource, name)
        except NotFoundError:
            return False
        except UnwindError:
            return True  # not known: it counts as there
        return True

    async def _may(self, verb: str, group: str, plural: str, name: str, namespace: str = "") -> bool:
        attributes = {"verb": verb, "group": group, "resource": plural, "name": name}
        if namespace:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "metadata": {},
            "spec": {"resourceAttributes": attributes},
        }
        decided = await self._client.create(SELF_SUBJECT_ACCESS_REVIEWS, body)
        return (decided.get("status") or {}).get("allowed") is True
