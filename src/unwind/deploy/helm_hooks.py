"""Runs the hooks of an uninstall as Helm does: in its order, one after the other, with its delete policies."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, JOBS, PODS
from unwind.deleters.outcomes import Pace, TransientError
from unwind.deploy.helm_install import ReleaseObject
from unwind.errors import TimedOutError
from unwind.helm.release_secrets import HOOK_MANAGER, HelmHook
from unwind.kube import object_watch
from unwind.kube.errors import ApiError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Object
    from unwind.members.member import Member

_log = logs.get(__name__)


class HookFailedError(TransientError):
    """A hook could not be created, failed, or did not end in time."""


class ReleaseHook(msgspec.Struct, frozen=True):
    """A hook of a release, with its resource and namespace on this member."""

    about: HelmHook
    part: ReleaseObject
    document: dict[str, Any]


class HookRunner:
    """Runs the hooks of one release."""

    def __init__(
        self,
        member: Member,
        release: ObjectRef,
        hooks: Sequence[ReleaseHook],
        *,
        patience: float,
        is_own: Callable[[ReleaseObject, Object], bool],
    ) -> None:
        """`hooks`: in the order in which they run. `patience`: seconds for each wait. `is_own`: whether an existing
        object is a hook of this release, which may be replaced."""
        self._member = member
        self._release = release
        self._hooks = hooks
        self._patience = patience
        self._is_own = is_own
        self._created: set[str] = set()

    async def run(self, event: str) -> None:
        """Return when all hooks of this event have succeeded; raise HookFailedError if one has not."""
        ran: list[tuple[ReleaseHook, str]] = []
        for hook in self._hooks:
            if event not in (hook.about.events or ()):
                continue
            uid = await self._create(hook)
            _log.info("hook created", release=str(self._release), hook=str(hook.part.ref), hook_event=event)
            try:
                await self._until_ended(hook, uid)
            except HookFailedError:
                await self._clean_up([(hook, uid)], "hook-failed")
                await self._clean_up(ran, "hook-succeeded")
                raise
            ran.append((hook, uid))
        await self._clean_up(reversed(ran), "hook-succeeded")

    async def _create(self, hook: ReleaseHook) -> str:
        """Create the object of a hook; its uid."""
        part, client = hook.part, self._member.client
        if not part.manifest.name:
            raise self._failed(hook, "it has no name")
        if part.manifest.replaced:
            await self._delete_former(hook)
        metadata = dict(hook.document["metadata"])
        metadata |= {"namespace": part.namespace} if part.namespace else {}
        try:
            made = await client.create(
                part.resource, {**hook.document, "metadata": metadata}, field_manager=HOOK_MANAGER
            )
        except ApiError as error:
            raise self._failed(hook, str(error)) from error
        uid: str = made["metadata"]["uid"]
        self._created.add(uid)
        return uid

    async def _delete_former(self, hook: ReleaseHook) -> None:
        """Delete the object that a former run, or an earlier event, has left."""
        part = hook.part
        try:
            there = await self._member.client.get(part.resource, part.manifest.name, namespace=part.namespace or None)
        except NotFoundError:
            return
        if there["metadata"]["uid"] not in self._created and not self._is_own(part, there):
            raise self._failed(hook, "an object of that name exists, which is not a hook of this release")
        await self._delete(hook, there["metadata"]["uid"], version=there["metadata"]["resourceVersion"])

    async def _clean_up(self, those: Iterable[tuple[ReleaseHook, str]], policy: str) -> None:
        for hook, uid in those:
            if policy in (hook.about.delete_policies or ()):
                await self._delete(hook, uid)

    async def _delete(self, hook: ReleaseHook, uid: str, *, version: str | None = None) -> None:
        """Delete the object of a hook, and return when it is absent."""
        part, name, namespace = hook.part, hook.part.manifest.name, hook.part.namespace or None
        if part.resource == CUSTOM_RESOURCE_DEFINITIONS:
            return  # its objects would be deleted with it
        try:
            await self._member.client.delete(
                part.resource, name, uid=uid, version=version, namespace=namespace, propagation="Background"
            )
            await object_watch.until(
                self._member.client,
                part.resource,
                name,
                lambda there: there is None or there["metadata"]["uid"] != uid,
                "absent",
                namespace=namespace,
                within=self._patience,
            )
        except NotFoundError:
            return
        except (ApiError, TimedOutError) as error:
            if isinstance(error, ConflictError) and version is None:
                return  # its name belongs to another object
            raise self._failed(hook, str(error)) from error

    async def _until_ended(self, hook: ReleaseHook, uid: str) -> None:
        """Return when a Job or a Pod has succeeded, or is deleted. All other kinds count at once."""
        part = hook.part
        if (part.resource.group, part.resource.kind) not in ((JOBS.group, JOBS.kind), (PODS.group, PODS.kind)):
            return
        states = object_watch.follow(
            self._member.client, part.resource, part.manifest.name, namespace=part.namespace or None
        )
        try:
            async with asyncio.timeout(self._patience), aclosing(states):
                async for there in states:
                    if there is None or there["metadata"]["uid"] != uid or succeeded(there):
                        return
                    if why := why_failed(there):
                        raise self._failed(hook, why)
        except TimeoutError:
            raise self._failed(hook, f"timed out after {self._patience:.0f}s") from None

    def _failed(self, hook: ReleaseHook, why: str) -> HookFailedError:
        # Hooks are rarely corrected within seconds.
        return HookFailedError(
            f"cannot uninstall {self._release}: its hook {hook.part.ref} failed: {why}",
            pace=Pace.SLOW,
            remedy="will retry; correct the hook, or what it needs",
        )


def succeeded(there: Object) -> bool:
    """Whether a Job or a Pod has succeeded (pure)."""
    return _status(there).get("phase") == "Succeeded" or "Complete" in _conditions(there)


def why_failed(there: Object) -> str:
    """Why a Job or a Pod has failed; empty if it has not (pure)."""
    status, conditions = _status(there), _conditions(there)
    if "Failed" in conditions:
        return conditions["Failed"] or "it has failed"
    return (status.get("message") or "its containers have failed") if status.get("phase") == "Failed" else ""


def _conditions(there: Object) -> dict[str, str]:
    """The conditions that are true, with the reason and the message."""
    return {
        item["type"]: ": ".join(filter(None, (item.get("reason"), item.get("message"))))
        for item in _status(there).get("conditions") or ()
        if item["status"] == "True"
    }


def _status(there: Object) -> dict[str, Any]:
    return there.get("status") or {}
