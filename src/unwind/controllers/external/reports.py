"""What people are told of a deletion: the Ready condition of the object, and Events on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from unwind import logs
from unwind.api.names import EventReason, Reason
from unwind.controllers.external import conditions, objects
from unwind.controllers.external.conditions import Said
from unwind.controllers.revising import revise
from unwind.deleting.outcomes import Gone, Kept, Severity
from unwind.kube.errors import ApiError
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleting.entering import Failed, Waiting
    from unwind.kube.client import Client, Object
    from unwind.kube.events import Recorder

log = logs.get(__name__)


class Reports:
    """Tells of the deletions of one kind."""

    def __init__(self, client: Client, resource: Resource, recorder: Recorder, *, clock: Clock) -> None:
        self._client = client
        self._resource = resource
        self._recorder = recorder
        self._clock = clock
        self._silent = False
        """Whether the kind has no conditions: then there are Events only."""
        self._unknown: set[str] = set()
        """The fields of conditions that the kind's schema does not have."""
        self._last: dict[str, Said] = {}
        """What was last said of each object, by uid: an Event tells what is new."""

    def learn_anew(self) -> None:
        """The kind's schema has changed."""
        self._silent = False
        self._unknown.clear()

    def forget(self, uid: str) -> None:
        self._last.pop(uid, None)

    def claimed(self, ref: ObjectRef) -> None:
        self._tell(ref, EventReason.FINALIZER_SET, "what it stands for goes before it does", action="Claim")

    def started(self, ref: ObjectRef) -> None:
        self._tell(ref, EventReason.DELETION_STARTED, "what it stands for is being deleted")

    def ended(self, ref: ObjectRef, outcome: Gone | Kept) -> None:
        if isinstance(outcome, Gone):
            self._tell(ref, EventReason.GONE, outcome.why or "what it stands for was seen to be absent")
        else:
            why = outcome.message or outcome.reason
            by = f", as said by {outcome.by}" if outcome.by else ""
            self._tell(ref, EventReason.KEPT, f"what it stands for is kept: {why}{by}")

    async def unfinished(self, ref: ObjectRef, obj: Object, result: Waiting | Failed) -> str:
        """Say why the object is still there; returns up to which version of it nobody else has changed anything."""
        said = conditions.said(result)
        if self._last.get(ref.uid) != said:
            self._last[ref.uid] = said
            warning = said.severity is not Severity.INFO
            self._tell(ref, said.reason, said.message, type="Warning" if warning else "Normal")
        return await self.condition(obj, said)

    async def left_to_others(self, ref: ObjectRef, obj: Object) -> None:
        """Say that others still hold the object, if they do: what was said last is not so any more."""
        if finalizers := obj["metadata"].get("finalizers"):
            told = f"what {ref} stands for is done with, and it waits for {', '.join(finalizers)}"
            await self.condition(obj, Said(Reason.DELETING, told, Severity.INFO))

    async def condition(self, obj: Object, said: Said) -> str:
        """Write it down, if the kind has conditions and it is not what stands there."""
        version = str(obj["metadata"]["resourceVersion"])
        if self._silent:
            return version
        wanted: Object = {}
        versions: list[str] = []

        def change(obj: Object) -> Object | None:
            versions.append(str(obj["metadata"]["resourceVersion"]))
            before = conditions.listed(obj)
            if before is None:
                return None
            generation = objects.metadata_of(obj).generation
            now = self._clock.now()
            after = conditions.not_ready(before, said, generation=generation, now=now, without=self._unknown)
            if after is before:
                return None
            wanted.update(next(one for one in after if one not in before))
            return {"status": {"conditions": after}}

        try:
            written = await revise(self._client, self._resource, obj, change, subresource="status")
        except ApiError as error:
            if error.code in (429, 409) or error.code >= 500:
                raise
            # No status subresource, a schema that wants something else, no right to write it.
            self._fall_silent(str(error))
            return version
        if written is None:
            return version
        unknown = conditions.dropped(written, wanted)
        if unknown is None:
            self._fall_silent("its schema has no conditions")
        else:
            self._unknown |= unknown
        # Written onto what was read, it is the only change; onto something newer, that newer thing was not looked at.
        return str(written["metadata"]["resourceVersion"]) if versions == [version] else version

    def _fall_silent(self, why: str) -> None:
        self._silent = True
        log.warning("the kind takes no conditions, there are Events only", kind=self._resource.kind, why=why)

    def _tell(
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
