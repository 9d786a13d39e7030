"""The Ready condition and Events that report a deletion, on kinds that others define."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from unwind import logs
from unwind.api.names import ConditionType, EventReason, Reason
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Gone, Kept, Severity
from unwind.external import tracked_objects
from unwind.kube.errors import ApiError
from unwind.kube.events import Regarding
from unwind.kube.updates import revise

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.kube.events import Recorder


# The limits of metav1.Condition.
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LONGEST_WORD = 1024
_LONGEST_MESSAGE = 32768


class ReadyCondition(msgspec.Struct, frozen=True):
    """The Ready condition of an object that is not gone yet."""

    reason: str
    message: str
    severity: Severity


def ready_condition_of(result: Waiting | Failed) -> ReadyCondition:
    """The condition for a result that is not final."""
    if isinstance(result, Waiting):
        return ReadyCondition(Reason.DELETING, result.reason, Severity.INFO)
    # The reason comes from the author of the deleter; an invalid one must not suppress the message.
    fits = _WORD.fullmatch(result.reason) and len(result.reason) <= _LONGEST_WORD
    return ReadyCondition(result.reason if fits else Reason.FAILED, result.message, result.severity)


def not_ready(
    conditions: list[Object], said: ReadyCondition, *, generation: int, now: datetime, without: Collection[str] = ()
) -> list[Object]:
    """The conditions with Ready set to False; the same list if nothing changes.

    `without`: the fields that the kind's schema does not have.
    """
    before = next((obj for obj in conditions if obj.get("type") == ConditionType.READY), None)
    ours: Object = {
        "type": ConditionType.READY.value,
        "status": "False",
        "severity": said.severity.value,
        "reason": str(said.reason),
        "message": said.message[:_LONGEST_MESSAGE],
        "observedGeneration": generation,
    }
    after = (before or {}) | {key: value for key, value in ours.items() if key not in without}
    # It says since when: a different message does not start a new wait.
    if before is None or before.get("status") != "False":
        after["lastTransitionTime"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    if after == before:
        return conditions
    if before is None:
        return [*conditions, after]
    return [after if obj is before else obj for obj in conditions]


def conditions_of(obj: Object) -> list[Object] | None:
    """An object's conditions; None if the field has another type."""
    status = obj.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    if found is None:
        return []
    fits = isinstance(found, list) and all(isinstance(item, dict) for item in found)
    return found if fits else None


def dropped_fields(obj: Object, wanted: Object) -> set[str] | None:
    """The fields of a condition that the server dropped; None if it dropped the condition."""
    kept = next((item for item in conditions_of(obj) or () if item.get("type") == wanted["type"]), None)
    if kept is None or kept.get("message") != wanted["message"]:
        return None
    return {key for key in wanted if key not in kept}


# Reports: the Ready condition of the object, and Events

log = logs.get(__name__)


class Reports:
    """Reports the deletions of one kind."""

    def __init__(self, client: Client, resource: Resource, recorder: Recorder, *, clock: Clock) -> None:
        self._client = client
        self._resource = resource
        self._recorder = recorder
        self._clock = clock
        self._silent = False
        """Whether the kind has no conditions: then there are only Events."""
        self._unknown: set[str] = set()
        """The condition fields that the kind's schema does not have."""
        self._last: dict[str, ReadyCondition] = {}
        """The last report of each object, by uid: an Event is sent only for changes."""

    def learn_anew(self) -> None:
        """Reset after a change of the kind's schema."""
        self._silent = False
        self._unknown.clear()

    def forget(self, uid: str) -> None:
        self._last.pop(uid, None)

    def claimed(self, ref: ObjectRef) -> None:
        self._send_event(
            ref, EventReason.FINALIZER_SET, "the external resource is deleted before this object", action="Claim"
        )

    def started(self, ref: ObjectRef) -> None:
        self._send_event(ref, EventReason.DELETION_STARTED, "deleting the external resource")

    def ended(self, ref: ObjectRef, outcome: Gone | Kept) -> None:
        if isinstance(outcome, Gone):
            why = f": {outcome.why}" if outcome.why else ""
            self._send_event(ref, EventReason.GONE, f"the external resource is verified absent{why}")
        else:
            why = outcome.message or outcome.reason
            by = f" (by {outcome.by})" if outcome.by else ""
            self._send_event(ref, EventReason.KEPT, f"the external resource is kept: {why}{by}")

    async def unfinished(self, ref: ObjectRef, obj: Object, result: Waiting | Failed) -> str:
        """Report why the object still exists; returns the version up to which only Unwind changed it."""
        said = ready_condition_of(result)
        if self._last.get(ref.uid) != said:
            self._last[ref.uid] = said
            warning = said.severity is not Severity.INFO
            self._send_event(ref, said.reason, said.message, type="Warning" if warning else "Normal")
        return await self.condition(obj, said)

    async def left_to_others(self, ref: ObjectRef, obj: Object) -> None:
        """Report that other finalizers remain, if they do."""
        if finalizers := obj["metadata"].get("finalizers"):
            told = f"the external resource of {ref} is deleted or kept; waiting for finalizers {', '.join(finalizers)}"
            await self.condition(obj, ReadyCondition(Reason.DELETING, told, Severity.INFO))

    async def condition(self, obj: Object, said: ReadyCondition) -> str:
        """Write the condition, if the kind has conditions and it differs."""
        version = str(obj["metadata"]["resourceVersion"])
        if self._silent:
            return version
        wanted: Object = {}
        versions: list[str] = []

        def change(obj: Object) -> Object | None:
            versions.append(str(obj["metadata"]["resourceVersion"]))
            before = conditions_of(obj)
            if before is None:
                return None
            generation = tracked_objects.metadata_of(obj).generation
            now = self._clock.now()
            after = not_ready(before, said, generation=generation, now=now, without=self._unknown)
            if after is before:
                return None
            wanted.update(next(item for item in after if item not in before))
            return {"status": {"conditions": after}}

        try:
            written = await revise(self._client, self._resource, obj, change, subresource="status")
        except ApiError as error:
            if error.code in (429, 409) or error.code >= 500:
                raise
            # No status subresource, another schema, or no permission to write it.
            self._disable_conditions(str(error))
            return version
        if written is None:
            return version
        unknown = dropped_fields(written, wanted)
        if unknown is None:
            self._disable_conditions("the schema has no conditions")
        else:
            self._unknown |= unknown
        # If the write was made onto the version that was read, it is the only change; a newer version was not seen yet.
        return str(written["metadata"]["resourceVersion"]) if versions == [version] else version

    def _disable_conditions(self, why: str) -> None:
        self._silent = True
        log.warning("kind has no conditions, reporting by Events only", kind=self._resource.kind, why=why)

    def _send_event(
        self,
        ref: ObjectRef,
        reason: str,
        note: str,
        *,
        action: str = "Delete",
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - the field's name
    ) -> None:
        regarding = Regarding(self._resource.api_version, ref.kind, ref.name, ref.uid, ref.namespace)
        self._recorder.report(regarding, str(reason), note, action=action, type=type)
