"""Previews what becomes of the objects of other deployers when a cluster is deleted. Only reads.

Unwind removes a handle only if a TeardownPolicy selects the cluster. Without one its objects are shown all the same:
most deployers forget them when the cluster is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.policies import SourceKind
from unwind.api.resources import SECRETS
from unwind.api.unwind import Effort, Entry, EntryState, Inventory, InventorySpec, MemberRef, Plan, Step
from unwind.companions import snapshots
from unwind.companions.companion import Handle
from unwind.companions.helm_release_drivers import without_driven
from unwind.companions.step_source import (
    NOT_SELECTED,
    HandleDecisions,
    check_not_stranded,
    held_by,
    mentioned,
    removed_by_unwind,
    step_of,
    unplaced_warnings,
    warnings_of,
)
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.planning.blast_radius import blast_radius
from unwind.preview import leaks
from unwind.preview.handle_preview import handles_elsewhere, read_hub
from unwind.preview.member_preview import protected_entries
from unwind.preview.object_preview import Foreseen
from unwind.preview.removal_forecast import ForecastFate, ObjectForecast
from unwind.protection.deleter import ProtectedObject
from unwind.removal.deletion_scope import Told
from unwind.teardown.step_sources import SourceSteps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from unwind.companions.companion import Companion
    from unwind.companions.snapshots import MemberObjects, Snapshot
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import PolicyTerms, TeardownNotice
    from unwind.teardown.step_sources import SourceStep

_INCOMPLETE = "the preview may miss objects: retry, or look at the cluster itself"
NO_POLICY = f"would not be removed: {NOT_SELECTED}; add one to remove it"
NOT_MENTIONED = "would not be removed: no TeardownPolicy of this cluster mentions it; name it in one to remove it"
_AT_ONCE = 8
_NAMED = 5


class Decisions(HandleDecisions, Protocol):
    """What the policies of a cluster say."""

    @property
    def terms(self) -> PolicyTerms | None:
        """What they say about the cluster as a whole; None if no policy selects it."""


class CompanionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The handles of all deployers on a cluster, as steps, and what they deployed."""

    steps: SourceSteps = SourceSteps()
    chunks: tuple[Inventory, ...] = ()
    """What each handle deployed. These Inventories exist only in the preview."""
    why_left: Mapping[str, str] = {}
    """Why nothing of a step would be removed, by its name."""
    protection: Mapping[str, ProtectedObject] = {}
    """What deployers would delete, but may not be deleted, by uid."""
    by_unwind: frozenset[str] = frozenset()
    """The uids of handles whose objects Unwind removes itself, by its chain of deleters: their deployer would leave
    them."""
    given_up: Mapping[str, str] = {}
    """Why a step that is only tried is given up as it is now, by its name."""
    driven: Mapping[str, str] = {}
    """Why only a deployer that is no step may remove a step, by its name."""
    claims: Mapping[str, tuple[Entry, ...]] = {}
    """The claims that stay when a deployer deletes the StatefulSets of a handle, by its uid."""
    foreign: Mapping[str, tuple[ObjectRef, ...]] = {}
    """What a handle lists that does not carry the marks of its deployer, by its uid."""
    elsewhere: tuple[Told, ...] = ()
    """The handles in namespaces that no policy names, and why they are no steps."""
    unknown: tuple[str, ...] = ()
    """What could not be read, or is not known."""

    def leaks(self, step: Step, forecast: Iterable[ObjectForecast]) -> list[Told]:
        """What the step of a handle leaves behind although no policy says so. `forecast`: of its objects."""
        forecast = list(forecast)
        if step.name in self.why_left:
            return [Told(step.object, self.why_left[step.name])]
        if step.effort == Effort.LEAVE or step.object.uid not in self._handles:
            return []
        if why := self._why_stays(step, [item.entry for item in forecast]):
            return [Told(step.object, why)]
        staying = [item.entry for item in forecast if item.fate is ForecastFate.STAYS]
        return [*leaks.of_kept(staying), *leaks.of_foreign(step.object, self.foreign.get(step.object.uid, ()))]

    @property
    def _handles(self) -> frozenset[str]:
        return frozenset(item.draft.object.uid for item in self.steps.steps)

    def with_chunks(self, recorded: Iterable[Inventory]) -> list[Inventory]:
        """These Inventories, and those of handles that are not recorded yet."""
        recorded = list(recorded)
        known = {chunk.spec.owner.uid for chunk in recorded}
        return [*recorded, *(chunk for chunk in self.chunks if chunk.spec.owner.uid not in known)]

    def forecast(self, step: Step, entries: Iterable[Entry]) -> list[ObjectForecast] | None:
        """What happens to the objects of a step: its deployer deletes them. None if it is not the step of a handle, or
        Unwind removes them itself."""
        if step.object.uid not in self._handles or step.object.uid in self.by_unwind:
            return None
        entries = list(entries)
        left = self._why_stays(step, entries)
        if not left:
            known = {entry.object.uid for entry in entries}
            entries += [claim for claim in self.claims.get(step.object.uid, ()) if claim.object.uid not in known]
        return [
            ObjectForecast(entry, ForecastFate.STAYS, left or leaks.why_kept(entry))
            if left or entry.kept
            else ObjectForecast(entry, ForecastFate.GOES)
            for entry in entries
        ]

    def _why_stays(self, step: Step, entries: Iterable[Entry]) -> str:
        """Why nothing of a step is removed; empty if its deployer deletes what it does not keep."""
        if step.name in self.why_left:
            return self.why_left[step.name]
        if step.effort == Effort.LEAVE:
            return f"{step.name} is left in place"
        if step.name in self.driven:
            return self.driven[step.name]
        if step.effort != Effort.TRY:
            return ""
        if step.name in self.given_up:
            return self.given_up[step.name]
        # Its deployer would delete all of its objects.
        protected = self.protected([step.object, *(entry.object for entry in entries)])
        return f"part of {step.object}, which stays: {protected[0].message}" if protected else ""

    def protected(self, refs: Iterable[ObjectRef]) -> list[ProtectedObject]:
        """The handles and objects among these because of which a handle is not deleted."""
        return [self.protection[uid] for uid in dict.fromkeys(ref.uid for ref in refs) if uid in self.protection]


NOTHING = CompanionPreview()


async def preview_companions(
    companions: Sequence[Companion], decisions: Decisions, members: Members, target: ClusterTarget, *, selected: bool
) -> CompanionPreview:
    """The preview of all handles for a cluster. `selected`: whether a policy selects it."""
    if not target.ready:
        return CompanionPreview(unknown=await _why_not_ready(companions, decisions, members, target))
    handles: list[tuple[Handle, Snapshot]] = []
    failed: list[str] = []
    warnings: list[str] = []
    said: list[TeardownNotice] = []
    chunks: list[Inventory] = []
    protection: list[ProtectedObject] = []
    by_unwind: set[str] = set()
    claims: dict[str, tuple[Entry, ...]] = {}
    others: list[ObjectRef] = []
    try:
        async with members.member(target) as member:
            objects = snapshots.MemberObjects(member)
            for companion in companions:
                try:
                    found = await companion.handles(target, member, decisions.namespaces(companion.source))
                    found = without_driven(found, decisions)
                    unplaced = [handle for handle in found if handle.unplaced]
                    said += held_by(unplaced, decisions.decide)
                    warnings += unplaced_warnings(unplaced, decisions.decide)
                    found = [handle for handle in found if not handle.unplaced]
                    shown, warning = _shown(companion.source, found, decisions)
                    handles += await _taken(objects, companion, shown)
                    warnings += [warning] if warning else []
                except UnwindError as error:
                    what = f"what {companion.source.value} deployed on this cluster"
                    failed.append(f"cannot read {what}: {error}; {_INCOMPLETE}")
            failed += [f"{handle.step}: {handle.unknown}" for handle, _ in handles if handle.unknown]
            chunks = [chunk_of(member, target.ref, handle, snapshot) for handle, snapshot in handles]
            removed = [
                (handle, snapshot)
                for handle, snapshot in handles
                if (decision := decisions.decide(handle)) and decision.effort is not Effort.LEAVE and not handle.driven
            ]
            by_unwind = {handle.ref.uid for handle, _ in removed if removed_by_unwind(handle, decisions.decide(handle))}
            going = [
                entry
                for handle, snapshot in removed
                for entry in snapshot.entries.values()
                if not entry.kept and handle.ref.uid not in by_unwind
            ]
            protection = await protected_entries(member, target.ref, going)
            claims = await claims_of(
                member, {handle.ref.uid: snapshot for handle, snapshot in removed if handle.ref.uid not in by_unwind}
            )
            async with members.management() as home:
                protection += await _protected_handles(home, member, [handle for handle, _ in removed])
                others = await handles_elsewhere(home.client, await read_hub(home.client), decisions, target, member)
    except UnwindError as error:
        failed.append(f"cannot read what other deployers deployed on this cluster: {error}; {_INCOMPLETE}")
    steps = _steps(handles, decisions)
    return CompanionPreview(
        steps=msgspec.structs.replace(steps, warnings=(*steps.warnings, *warnings), said=tuple(said)),
        chunks=tuple(chunks),
        why_left={
            handle.step: NOT_MENTIONED if selected else NO_POLICY
            for handle, _ in handles
            if decisions.decide(handle) is None
        },
        protection={item.object.uid: item for item in protection},
        by_unwind=frozenset(by_unwind),
        given_up=_given_up([handle for handle, _ in handles if handle.ref.uid not in by_unwind], decisions),
        driven={handle.step: f"would be left behind: it {handle.driven}" for handle, _ in handles if handle.driven},
        claims=claims,
        foreign={handle.ref.uid: snapshot.foreign for handle, snapshot in handles if snapshot.foreign},
        elsewhere=tuple(Told(ref, not_a_step(ref) if selected else NO_POLICY) for ref in others),
        unknown=tuple(failed),
    )


def not_a_step(handle: ObjectRef) -> str:
    """Why a handle in another namespace is no step (pure)."""
    return f"not a step: namespace {handle.namespace} is in no sources[].namespaces of a TeardownPolicy"


async def _why_not_ready(
    companions: Sequence[Companion], decisions: Decisions, members: Members, target: ClusterTarget
) -> tuple[str, ...]:
    """Why it is not known what is on a cluster whose control plane is not initialized. Before it has a kubeconfig,
    nothing can have been deployed there; afterwards its status may only be missing, for example after a move."""
    why = "its control plane is not initialized, as far as its status says"
    try:
        async with members.management() as home:
            await home.client.get(SECRETS, target.secret, namespace=target.home)
    except NotFoundError:
        try:
            for companion in companions:
                await check_not_stranded(companion, target, decisions)
        except UnwindError as error:
            why = f"{why}, and {error}"
        else:
            return ()
    except UnwindError as error:
        why = f"{why}, and its Secret cannot be read: {error}"
    return (f"cannot read what other deployers deployed on this cluster: {why}",)


async def claims_of(member: Member, taken: Mapping[str, Snapshot]) -> dict[str, tuple[Entry, ...]]:
    """The claims that stay when the StatefulSets in these snapshots are deleted, by the same keys."""
    found = {uid: await snapshots.staying_claims(member, snapshot.entries.values()) for uid, snapshot in taken.items()}
    return {uid: tuple(claims.values()) for uid, claims in found.items() if claims}


def _given_up(handles: Iterable[Handle], decisions: Decisions) -> dict[str, str]:
    """Why the steps of these handles are given up as they are now (pure). Only a step that is tried is."""
    return {
        handle.step: f"would be given up: it {handle.held}"
        for handle in handles
        if handle.held and (decision := decisions.decide(handle)) and decision.effort is Effort.TRY
    }


async def _protected_handles(home: Member, member: Member, handles: Iterable[Handle]) -> list[ProtectedObject]:
    """The handles that are protected themselves."""
    found: list[ProtectedObject] = []
    # A Helm release is no object.
    objects = [handle for handle in handles if handle.source is not SourceKind.HELM]
    for place, refs in (
        (home, [handle.ref for handle in objects if not handle.on_member]),
        (member, [handle.ref for handle in objects if handle.on_member]),
    ):
        resources = {
            kind: await place.discovery.resource(kind[1], group=kind[0])
            for kind in dict.fromkeys((ref.group, ref.kind) for ref in refs)
        }
        entries = [Entry(object=ref, resource=resources[ref.group, ref.kind].plural) for ref in refs]
        found += await protected_entries(place, place.ref, entries)
    return found


def _shown(source: SourceKind, handles: Sequence[Handle], decisions: Decisions) -> tuple[Sequence[Handle], str]:
    """The handles that are shown as steps, and a warning about the others (pure).

    A deployer that runs is expected to clean up. A Helm release is removed only if a policy names it, so that all
    others are one line.
    """
    if source is not SourceKind.HELM:
        return handles, ""
    shown = mentioned(handles, lambda handle: decisions.decide(handle) is not None)
    uids = {handle.ref.uid for handle in shown}
    others = sorted(f"{handle.ref.namespace}/{handle.ref.name}" for handle in handles if handle.ref.uid not in uids)
    if not others:
        return shown, ""
    names = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    return shown, (
        f"Helm releases that no TeardownPolicy mentions would not be removed: {names}; to remove them, name them in one"
    )


async def _taken(
    objects: MemberObjects, companion: Companion, handles: Sequence[Handle]
) -> list[tuple[Handle, Snapshot]]:
    await objects.expect([entry.object for handle in handles for entry in handle.entries])
    taken: dict[str, Snapshot] = {}

    async def one(handle: Handle) -> None:
        taken[handle.ref.uid] = await snapshots.take(objects, companion, handle)

    await gather_limited((one(handle) for handle in handles), limit=_AT_ONCE)
    return [(handle, taken[handle.ref.uid]) for handle in handles]


def _steps(handles: Sequence[tuple[Handle, Snapshot]], decisions: Decisions) -> SourceSteps:
    """The steps that a teardown of the cluster would have, and those that it would leave (pure)."""
    steps: list[SourceStep] = []
    warnings: list[str] = []
    for handle, snapshot in handles:
        decision = decisions.decide(handle)
        steps.append(step_of(handle, decision, objects=len(snapshot.entries)))
        warnings += warnings_of(handle, decision)
        warnings += [
            f"{handle.step} lists {ref}, which does not have its labels, and is not removed with it"
            for ref in snapshot.foreign
        ]
    return SourceSteps(steps=tuple(steps), warnings=tuple(warnings), terms=decisions.terms)


def chunk_of(member: Member, cluster: ObjectRef, handle: Handle, snapshot: Snapshot) -> Inventory:
    """The snapshot of a handle as an Inventory that is not written (pure)."""
    return Inventory(
        metadata=ObjectMeta(name=handle.ref.uid),
        spec=InventorySpec(
            owner=handle.ref,
            member=MemberRef(object=cluster, system_uid=member.system_uid),
            entries=snapshot.entries,
        ),
    )


class HandleOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What its deployer does if a handle is deleted as it is. Each text is one sentence; empty if it does not apply."""

    leaks: str = ""
    """Why nothing of what it deployed is deleted."""
    refused: Callable[[Handle, Sequence[Handle]], list[Told]] = lambda _, __: []
    """Why `unwind delete` refuses it. It is called with the handle, and with all handles of the cluster."""
    recreated: str = ""
    """What creates it again, and with it everything that it deploys."""


async def preview_handle(
    companion: Companion,
    members: Members,
    target: ClusterTarget,
    ref: ObjectRef,
    outlook: HandleOutlook,
    *,
    protected: Callable[[Member, Snapshot], Awaitable[Sequence[Told]]],
) -> Foreseen:
    """The preview of the deletion of one handle, whose cluster stays. `protected`: what may not be deleted, given the
    cluster and what the handle deployed there."""
    async with members.member(target) as member:
        found = await companion.handles(target, member, (ref.namespace,))
        handle = next((item for item in found if item.ref.uid == ref.uid), None)
        if handle is None:
            raise UnwindError(f"cannot plan deletion of {ref}: it was deleted meanwhile", remedy="check its name")
        snapshot = await snapshots.take(snapshots.MemberObjects(member), companion, handle)
        held = await protected(member, snapshot)
        claims = (await claims_of(member, {ref.uid: snapshot})).get(ref.uid, ())
    return foreseen_handle(handle, snapshot, outlook, others=found, protected=held, claims=claims)


def foreseen_handle(
    handle: Handle,
    snapshot: Snapshot,
    outlook: HandleOutlook,
    *,
    others: Sequence[Handle] = (),
    protected: Sequence[Told] = (),
    claims: Sequence[Entry] = (),
) -> Foreseen:
    """The preview of the deletion of a handle (pure). `others`: all handles of the cluster. `claims`: of its
    StatefulSets."""
    entries = [*snapshot.entries.values(), *claims]
    going = [] if outlook.leaks else [entry for entry in entries if not entry.kept]
    left = [Told(entry.object, outlook.leaks) for entry in entries if not entry.kept] if outlook.leaks else []
    left += leaks.of_kept(entries)
    left += leaks.of_foreign(handle.ref, snapshot.foreign)
    step = Step(name=handle.step, object=handle.ref, effort=Effort.ENFORCE.value, wave=1, objects=len(going))
    warnings = [
        *([f"it would be created again: {outlook.recreated}"] if outlook.recreated else []),
        *handle.warnings,
    ]
    made = Plan(steps=(step,), waves=1, objects=len(going), warnings=tuple(warnings))
    itself = Entry(object=handle.ref, resource=handle.ref.kind.lower(), state=EntryState.CONFIRMED.value)
    counted = [*going, *(msgspec.structs.replace(entry, kept=True) for entry in entries if entry not in going)]
    return Foreseen(
        title=str(handle.ref),
        target=handle.ref,
        requested=True,
        plan=made,
        objects={handle.step: tuple(entry.object for entry in going)},
        radius=blast_radius([itself, *counted], custom_resources={}),
        refusals=(*outlook.refused(handle, others), *protected),
        leaks=(*left, *((Told(handle.ref, handle.unknown),) if handle.unknown else ())),
        warnings=tuple(warnings),
        critical_path=(handle.step,),
    )
