"""Installs and upgrades charts on a member: everything that Helm creates is in the inventory, and foreign objects are
not changed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.annotation_values import DeletePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, named_ref
from unwind.api.names import HELM_KEEP, HELM_KEEP_ANNOTATION, OWNER_LABEL, Reason
from unwind.api.resources import NAMESPACES, SECRETS, Resource
from unwind.api.unwind import Entry, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters import builtin
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.helm import charts, release_secrets
from unwind.helm.program import HelmError
from unwind.helm.release_secrets import (
    ChartManifest,
    HelmRelease,
    HelmStatus,
    Revision,
    is_hook,
    is_own_hook,
    of_release,
)
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from unwind.members import contents
from unwind.protection.deleter import labelled, protected_object
from unwind.removal import foreign_content
from unwind.removal.takeovers import taken_over_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.deleters.registry import DeleterRegistry
    from unwind.deploy.owner_marks import DeploymentOwner
    from unwind.helm.charts import Chart
    from unwind.helm.program import Helm
    from unwind.kube.client import Object
    from unwind.members.member import Member

_TO_KEEP = f"to keep it, annotate it with {HELM_KEEP_ANNOTATION}={HELM_KEEP}"
HOOK = " hook"
"""The suffix of `source` in a hook's entry."""
_AT_ONCE = 8
_SHOWN = 5


class Account(msgspec.Struct, frozen=True):
    """The inventory entries of a release for one owner."""

    whose: str
    """The profile, for messages."""
    entries: Mapping[str, Entry] = {}
    """By key."""


class Book(Protocol):
    """The inventory entries of one release on one member."""

    async def mine(self) -> Mapping[str, Entry]:
        """The entries of the owner that deploys."""

    async def theirs(self, owner: str) -> Account:
        """The entries of another owner, by its uid."""

    async def record(self, changes: Mapping[str, Entry | None]) -> None:
        """Write entries of the owner that deploys, and delete those that are None, before it returns."""


class ReleaseObject(msgspec.Struct, frozen=True):
    """An object of a release, with its resource and namespace on this member."""

    manifest: ChartManifest
    resource: Resource
    namespace: str = ""
    """Empty for a cluster-scoped object."""
    served: bool = True
    """Whether the member serves its kind already: the chart itself may contain the CRD."""

    @property
    def ref(self) -> ObjectRef:
        return named_ref(self.resource, self.manifest.name, namespace=self.namespace)

    @property
    def key(self) -> str:
        """The key of its inventory entry: equal for all versions of its kind."""
        return release_entry_key(self.ref)


class Deployed(msgspec.Struct, frozen=True):
    """The result of a deployment."""

    release: HelmRelease
    changed: bool
    """Whether Helm was run."""
    objects: tuple[ObjectRef, ...] = ()
    """The objects on the member, with uids, without hooks."""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""


class Preview(msgspec.Struct, frozen=True):
    """The result of a dry run."""

    installs: bool
    """Whether there is no such release yet."""
    changes: bool
    objects: tuple[ObjectRef, ...] = ()
    conflicts: tuple[str, ...] = ()
    taken_from: str = ""
    """The profile that it would be taken over from, for messages."""


class HelmConflictError(PermanentError):
    """A foreign object or release is in the way. Nothing was changed."""

    def __init__(self, what: str, conflicts: Iterable[str], *, remedy: str = "remove it or use another name") -> None:
        self.conflicts = tuple(conflicts)
        named = ", ".join(self.conflicts[:_SHOWN])
        more = f" and {len(self.conflicts) - _SHOWN} more" if len(self.conflicts) > _SHOWN else ""
        super().__init__(f"{what}: {named}{more}", reason=Reason.NOT_OURS, remedy=remedy)


class ReleaseTakenError(HelmConflictError):
    """The release is managed by another profile and stays with it."""

    def __init__(self, release: str, account: Account, tier: int | None) -> None:
        self.account = account
        known = "" if tier is None else f" (tier {tier})"
        remedy = "use a lower tier or another release name"
        super().__init__(f"managed by {account.whose}{known}", [release], remedy=remedy)


def release_entry_key(ref: ObjectRef) -> str:
    """The key of an object's entry, from its kind and name and not from its uid."""
    name = f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.name}"
    return f"helm-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


async def install_or_upgrade(
    helm: Helm, member: Member, chart: Chart, *, owner: DeploymentOwner, book: Book, registry: DeleterRegistry
) -> Deployed:
    """Install or upgrade the release, and return when Helm has ended and all objects are in the inventory.

    A release of a profile with a higher tier is taken over: first the entries of that profile are copied, then the
    owner label of the release is changed.

    `registry`: knows the kinds with external resources, which Helm would delete without these.

    It can be called again at any time, for example after a crash. Raises HelmConflictError if a foreign object is in
    the way, and HelmError with Helm's message.
    """
    return await _Deployment(helm, member, chart, owner, book).run(registry)


async def preview(helm: Helm, member: Member, chart: Chart, *, owner: DeploymentOwner, book: Book) -> Preview:
    """What `deploy` would do. Changes nothing."""
    return await _Deployment(helm, member, chart, owner, book).preview()


class _Deployment:
    """One chart on one member."""

    def __init__(self, helm: Helm, member: Member, chart: Chart, owner: DeploymentOwner, book: Book) -> None:
        self._helm = helm
        self._member = member
        self._chart = chart
        self._owner = owner
        self._book = book
        self._entries: dict[str, Entry] = {}
        self._rival: Account | None = None
        """The former owner, if the release is taken over."""

    async def run(self, registry: DeleterRegistry) -> Deployed:
        try:
            revisions = await self._claimed()
        except ReleaseTakenError as error:
            await self._give_up(error.account)
            raise
        last = revisions[-1] if revisions else None
        if (
            last
            and not self._rival
            and last.release.status is HelmStatus.DEPLOYED
            and last.inputs == self._chart.inputs
        ):
            standing = await self._standing(await self._of([last]))
            if standing is not None:
                if last.tier != self._owner.tier:
                    await self._mark(last)
                await self._namespace()
                return Deployed(last.release, changed=False, objects=standing)
        taken_from = last.owner if last and self._rival else ""
        last = await self._recover(last)
        wanted = await self._render(upgrade=last is not None)
        dropped = _without(await self._of(_compared(revisions)), wanted)
        found = await self._found([*wanted, *dropped])
        if conflicts := self._conflicts(wanted, dropped, found):
            raise HelmConflictError(
                f"cannot deploy {self._chart.source}: objects exist that are not part of the release",
                conflicts,
                remedy="delete these objects, or rename them in the values of the chart",
            )
        await self._check_dropped(dropped, found, registry)
        if going := _terminating(wanted, found):
            raise TransientError(
                f"cannot deploy {self._release} yet: {going} is being deleted", remedy="will retry when it is gone"
            )
        await self._intend(wanted, found)
        if last and self._rival:
            await self._mark(last)
        await self._namespace()
        try:
            await self._helm.upgrade(
                self._member.client.connection, self._chart, owner=self._owner.uid, tier=self._owner.tier
            )
        except HelmError:
            # Objects that it created exist nevertheless.
            await self._confirm(await self._ours(), wanted)
            raise
        revisions = await self._ours()
        if not revisions:
            raise TransientError(f"the release of {self._chart.source} was deleted while it was deployed; will retry")
        objects = await self._confirm(revisions, wanted)
        return Deployed(revisions[-1].release, changed=True, objects=objects, taken_from=taken_from)

    async def preview(self) -> Preview:
        try:
            revisions = await self._claimed()
        except HelmConflictError as error:
            return Preview(installs=False, changes=False, conflicts=error.conflicts)
        last = revisions[-1] if revisions else None
        wanted = await self._render(upgrade=last is not None)
        dropped = _without(await self._of(_compared(revisions)), wanted)
        return Preview(
            installs=last is None,
            changes=last is None or bool(self._rival) or last.inputs != self._chart.inputs,
            objects=tuple(item.ref for item in wanted if not item.manifest.hook),
            conflicts=tuple(self._conflicts(wanted, dropped, await self._found([*wanted, *dropped]))),
            taken_from=self._rival.whose if self._rival else "",
        )

    # Ownership

    async def _claimed(self) -> list[Revision]:
        """The revisions of the release, if it is ours or can be taken over."""
        self._entries = dict(await self._book.mine())
        revisions = await self._history()
        last = revisions[-1] if revisions else None
        if last is None or last.owner == self._owner.uid:
            return revisions
        if not last.owner:
            raise HelmConflictError(
                f"{self._chart.source} exists and is not managed by Unwind",
                [self._release],
                remedy="uninstall it with `helm uninstall`, or use another release name",
            )
        account = await self._book.theirs(last.owner)
        if last.owner in self._owner.former:
            # Its own, from a former management cluster, which has the inventory.
            entries = {**await self._marked(revisions), **account.entries}
            self._rival = msgspec.structs.replace(account, entries=entries)
            return revisions
        # If its tier is unknown, it is not taken over.
        if last.tier is None or last.tier <= self._owner.tier:
            raise ReleaseTakenError(self._release, account, last.tier)
        if last.release.status is HelmStatus.UNINSTALLING:
            raise TransientError(
                f"{self._release} is being uninstalled for {account.whose}; it is installed again afterwards"
            )
        self._rival = account
        return revisions

    async def _ours(self) -> list[Revision]:
        """The revisions after a run of Helm."""
        revisions = await self._history()
        if revisions and revisions[-1].owner != self._owner.uid:
            raise TransientError(f"the owner of {self._release} changed during the deployment", remedy="will retry")
        return revisions

    async def _history(self) -> list[Revision]:
        chart = self._chart
        return await release_secrets.history(self._member.client, namespace=chart.namespace, release=chart.release)

    async def _mark(self, last: Revision) -> None:
        """Set our owner label on the release."""
        try:
            await release_secrets.mark(self._member.client, last, owner=self._owner.uid, tier=self._owner.tier)
        except (ConflictError, NotFoundError) as error:
            raise TransientError(f"{self._release} was changed concurrently", remedy="will retry") from error

    async def _give_up(self, account: Account) -> None:
        """Delete our entries of objects that another owner took over, if that owner has recorded them."""
        theirs = account.entries
        lost = [key for key, entry in self._entries.items() if key in theirs and _same(entry, theirs[key])]
        await self._write(dict.fromkeys(lost))

    @property
    def _release(self) -> str:
        return f"release {self._chart.namespace}/{self._chart.release}"

    # Objects

    async def _recover(self, last: Revision | None) -> Revision | None:
        """Mark an interrupted release as failed: Helm refuses to continue a pending one."""
        if last is None or not (last.release.pending or last.release.status is HelmStatus.UNINSTALLING):
            return last
        connection, began, replica = self._member.client.connection, last.release.began, last.replica
        if self._helm.at_work(connection, self._chart, began, replica=replica):
            who = f"replica {replica}" if replica and replica != self._helm.replica else "another Helm process"
            raise TransientError(
                f"cannot deploy {last.release}: it is {last.release.info.status}, and {who} may still be running",
                remedy="will retry, and continue when that process has ended",
            )
        why = f"interrupted while {last.release.info.status}"
        return await release_secrets.set_status(
            self._member.client, last, HelmStatus.FAILED, why=why, replica=self._helm.replica
        )

    async def _render(self, *, upgrade: bool) -> list[ReleaseObject]:
        """The objects that the chart renders."""
        client = self._member.client
        about = msgspec.json.decode(await client.raw("/version"), type=_About)
        served: dict[str, None] = {}  # a set that keeps the order
        for kind in await self._member.discovery.kinds(anew=True):
            served |= {kind.resource.api_version: None, f"{kind.resource.api_version}/{kind.resource.kind}": None}
        found = await self._helm.render(
            client.connection, self._chart, upgrade=upgrade, version=about.git_version, served=served
        )
        return await parts_of(self._member, found, namespace=self._chart.namespace)

    async def _of(self, revisions: Sequence[Revision]) -> list[ReleaseObject]:
        """The objects of all these revisions: after an interrupted upgrade, those of the previous revision exist."""
        found: dict[str, ReleaseObject] = {}
        for revision in revisions:
            manifests = await asyncio.to_thread(release_secrets.release_manifests, revision.release)
            parts = await parts_of(self._member, manifests, namespace=self._chart.namespace)
            found |= {it.key: it for it in parts}
        return list(found.values())

    async def _found(self, wanted: Iterable[ReleaseObject]) -> dict[str, Object]:
        """The existing objects of these names."""
        found: dict[str, Object] = {}

        async def look(one: ReleaseObject) -> None:
            with suppress(NotFoundError):
                found[one.key] = await self._member.client.get(
                    one.resource, one.manifest.name, namespace=one.namespace or None
                )

        await gather_limited((look(obj) for obj in wanted if obj.served), limit=_AT_ONCE)
        return found

    async def _marked(self, revisions: Sequence[Revision]) -> dict[str, Entry]:
        """The entries of the objects that an upgrade could delete, as far as they have Helm's mark of the release.
        Without hooks, which do not name their release."""
        chart = self._chart
        parts = [obj for obj in await self._of(_compared(revisions)) if not obj.manifest.hook]
        found = await self._found(parts)
        return {
            obj.key: self._entry(obj.ref, obj.resource, uid=there["metadata"]["uid"], kept=obj.manifest.kept)
            for obj in parts
            if (there := found.get(obj.key)) and of_release(there, namespace=chart.namespace, release=chart.release)
        }

    async def _standing(self, objects: list[ReleaseObject]) -> tuple[ObjectRef, ...] | None:
        """The objects, if all of them exist as recorded; None if one is missing or being deleted."""
        parts = [obj for obj in objects if not obj.manifest.hook]
        found = await self._found(parts)
        refs = []
        for part in parts:
            entry, there = self._entries.get(part.key), found.get(part.key)
            if there is None or entry is None or entry.object.uid != there["metadata"]["uid"]:
                return None
            if there["metadata"].get("deletionTimestamp"):
                return None
            refs.append(entry.object)
        return tuple(refs)

    def _conflicts(
        self, wanted: Iterable[ReleaseObject], dropped: Iterable[ReleaseObject], found: Mapping[str, Object]
    ) -> list[str]:
        """The foreign objects that Helm would change or delete by name."""
        chart, conflicts = self._chart, []
        entries = {**self._entries, **(self._rival.entries if self._rival else {})}
        # Users who may write Secrets there can name any object in the release. What it drops must be recorded as ours.
        conflicts += [str(obj.ref) for obj in dropped if obj.key in found and obj.key not in entries]
        for obj in (*wanted, *dropped):
            there, known = found.get(obj.key), entries.get(obj.key)
            if there is None or obj.manifest.forever:
                continue
            if obj.manifest.hook:
                # A hook does not name its release.
                foreign = obj.manifest.replaced and not is_own_hook(there, known.object.uid if known else None)
            else:
                # It may have been created again with Helm's labels, for example from a backup.
                other = known and known.object.uid and known.object.uid != there["metadata"]["uid"]
                foreign = bool(other) or not of_release(there, namespace=chart.namespace, release=chart.release)
            if foreign:
                conflicts.append(str(obj.ref))
        return sorted(set(conflicts))

    async def _check_dropped(
        self, dropped: Sequence[ReleaseObject], found: Mapping[str, Object], registry: DeleterRegistry
    ) -> None:
        """Raise if Helm would delete an object that is no longer in the chart, and the chain of deleters would not
        simply delete it: another profile has taken it over, its policy keeps it, it has an external resource, it is
        protected, or it is a Namespace or CRD with content."""
        client = self._member.client
        going = {obj.key: found[obj.key] for obj in dropped if obj.key in found and not _kept_alive(found[obj.key])}
        refs = {there["metadata"]["uid"]: obj.ref for obj in dropped if (there := going.get(obj.key))}
        for obj in dropped:
            if (there := going.get(obj.key)) is None:
                continue
            ref = msgspec.structs.replace(obj.ref, uid=there["metadata"]["uid"])
            what = f"cannot upgrade {self._release}: {ref} is no longer in the chart and would be deleted"
            await self._check_keepers(obj, there, what, registry)
            if labelled(there["metadata"].get("labels")) and (
                held := await protected_object(client, obj.resource, ref, cluster=self._member.ref)
            ):
                raise PermanentError(what, reason=held.reason, remedy=held.why)
            if foreign_content.is_container(ref):
                content = await foreign_content.held_by(
                    client, self._member.discovery, ref, there, removed=refs, going=()
                )
                if held_there := [*content.going, *content.staying]:
                    raise PermanentError(
                        f"{what} with {contents.first_names(held_there)}",
                        reason=Reason.FOREIGN_CONTENT,
                        remedy=f"{_TO_KEEP}; will retry",
                    )

    async def _check_keepers(self, obj: ReleaseObject, there: Object, what: str, registry: DeleterRegistry) -> None:
        """Raise if the owner label, the policy or the kind of an object does not allow that Helm deletes it."""
        labels, annotations = there["metadata"].get("labels") or {}, builtin.annotated(there)
        if by := taken_over_by(labels, annotations, {self._owner.uid, *self._owner.former}):
            raise PermanentError(
                f"{what}, but it was taken over by {by}", reason=Reason.NOT_OURS, remedy=f"{_TO_KEEP}; will retry"
            )
        around = await self._member.resolver.namespace(obj.namespace) if obj.namespace else None
        ruling = builtin.effective_policy(annotations, namespace=builtin.annotated(around) if around else None)
        if isinstance(ruling.policy, Unknown):
            raise PermanentError(
                f"{what}, but its delete policy {ruling.policy}",
                reason=Reason.UNKNOWN_VALUE,
                remedy=f"correct {ruling.by}; will retry",
            )
        if ruling.policy is not DeletePolicy.MANAGE:
            raise PermanentError(
                f"{what}, but its policy is {ruling.policy}",
                reason=Reason.KEPT_BY_POLICY,
                remedy=f"{_TO_KEEP}; to have it deleted, remove {ruling.by}; will retry",
            )
        if external := await registry.external(obj.resource):
            raise PermanentError(
                f"{what} before {external.name} deletes its external resource",
                reason=Reason.EXTERNAL_RESOURCE,
                remedy=f"{_TO_KEEP}; to have it deleted, delete it with `unwind delete`; will retry",
            )

    # Inventory

    async def _namespace(self) -> None:
        """Create the release's namespace with our owner label: Helm would leave it behind on uninstall. A namespace
        that the former owner created for the release is taken over with it."""
        chart, client = self._chart, self._member.client
        ref = named_ref(NAMESPACES, chart.namespace)
        key = release_entry_key(ref)
        try:
            there = await client.get(NAMESPACES, chart.namespace)
        except NotFoundError:
            pass
        else:
            entry, metadata = self._entries.get(key), there["metadata"]
            whose = (metadata.get("labels") or {}).get(OWNER_LABEL)
            if whose in self._owner.former:
                await self._write({key: self._entry(ref, NAMESPACES, uid=metadata["uid"])})
                entry = self._entries[key]
            if entry and entry.object.uid == metadata["uid"] and whose not in (None, self._owner.uid):
                await client.revise(NAMESPACES, there, {"metadata": {"labels": {OWNER_LABEL: self._owner.uid}}})
            return
        if not chart.options.create_namespace:
            return
        await self._write({key: self._entry(ref, NAMESPACES)})
        body = {
            "apiVersion": "v1",
            "kind": NAMESPACES.kind,
            "metadata": {"name": chart.namespace, "labels": {OWNER_LABEL: self._owner.uid}},
        }
        try:
            made = await client.create(NAMESPACES, body)
        except AlreadyExistsError:
            await self._write({key: None})  # created concurrently by another owner
            return
        await self._write({key: self._entry(ref, NAMESPACES, uid=made["metadata"]["uid"])})

    async def _intend(self, wanted: list[ReleaseObject], found: Mapping[str, Object]) -> None:
        """Record the objects that Helm will create, and first those that it created for the former owner."""
        chart = self._chart
        if self._rival:
            taken = {key: _handed(entry, chart) for key, entry in self._rival.entries.items()}
            await self._write({key: one for key, one in taken.items() if not _same(self._entries.get(key), one)})
        # Helm's release Secret: as long as it exists, there is a release to uninstall.
        first = named_ref(SECRETS, f"sh.helm.release.v1.{chart.release}.v1", namespace=chart.namespace)
        intended = {release_entry_key(first): self._entry(first, SECRETS, hook=True)}
        for obj in wanted:
            manifest = obj.manifest
            if not (manifest.forever and obj.key in found):
                intended[obj.key] = self._entry(obj.ref, obj.resource, hook=manifest.hook, kept=manifest.kept)
        # A hook that Helm replaces gets a new uid, which is unknown if the process is killed in between.
        replaced = {obj.key for obj in wanted if obj.manifest.hook and obj.manifest.replaced}
        await self._write(
            {
                key: entry
                for key, entry in intended.items()
                if key not in self._entries or (key in replaced and self._entries[key] != entry)
            }
        )

    async def _confirm(self, revisions: list[Revision], wanted: list[ReleaseObject]) -> tuple[ObjectRef, ...]:
        """Record the existing objects with their uids; delete the entries of objects that are gone."""
        chart, refs = self._chart, []
        changes: dict[str, Entry | None] = {}
        staying = {obj.key for obj in wanted}
        forever = [obj for obj in wanted if obj.manifest.forever and obj.key in self._entries]
        parts = [*await self._of(revisions), *forever]
        found = await self._found(part for part in parts if not part.manifest.on_delete)
        for part in parts:
            there = found.get(part.key)
            if part.manifest.hook:
                # A hook for the uninstall is created then, possibly more than once.
                if not part.manifest.on_delete and part.key in self._entries:
                    changes[part.key] = self._hook(part, there)
                continue
            if there is None:
                if part.key not in staying:
                    changes[part.key] = None  # Helm has deleted it
                continue
            if not part.manifest.forever and not of_release(there, namespace=chart.namespace, release=chart.release):
                continue
            uid = there["metadata"]["uid"]
            changes[part.key] = self._entry(part.ref, part.resource, uid=uid, kept=part.manifest.kept)
            refs.append(msgspec.structs.replace(part.ref, uid=uid))
        await self._write({key: entry for key, entry in changes.items() if self._entries.get(key) != entry})
        return tuple(refs)

    def _hook(self, one: ReleaseObject, there: Object | None) -> Entry:
        """The entry of a hook after a run of Helm: with its uid, if it exists."""
        uid = there["metadata"]["uid"] if there and is_hook(there) else ""
        return self._entry(one.ref, one.resource, uid=uid, hook=True)

    def _entry(
        self, ref: ObjectRef, resource: Resource, *, uid: str = "", hook: bool = False, kept: bool = False
    ) -> Entry:
        return Entry(
            object=msgspec.structs.replace(ref, uid=uid),
            resource=resource.plural,
            state=(EntryState.CONFIRMED if uid else EntryState.INTENDED).value,
            source=self._chart.source + (HOOK if hook else ""),
            order=self._chart.order,
            kept=kept and not hook,
        )

    async def _write(self, changes: Mapping[str, Entry | None]) -> None:
        if not changes:
            return
        await self._book.record(changes)
        for key, entry in changes.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry


async def parts_of(member: Member, manifests: Iterable[ChartManifest], *, namespace: str) -> list[ReleaseObject]:
    """The objects of a chart with their resources on a member; kinds that are not served are left out."""
    manifests = list(manifests)
    # Kinds that the chart's own CRDs define count as well.
    coming = {(serve.api_version, serve.kind): serve for it in manifests for serve in it.serves}
    known: dict[tuple[str, str], Resource] = {}
    for anew in (False, True):
        kinds = [kind.resource for kind in await member.discovery.kinds(anew=anew)]
        known = {(kind.api_version, kind.kind): kind for kind in kinds}
        if all((manifest.api_version, manifest.kind) in known for manifest in manifests):
            break
    return [
        ReleaseObject(
            manifest, resource, (manifest.namespace or namespace) if resource.namespaced else "", kind in known
        )
        for manifest in manifests
        if (resource := known.get(kind := (manifest.api_version, manifest.kind)) or coming.get(kind))
    ]


def chart_of(entry: Entry) -> str:
    """The source of the chart that an entry belongs to; empty if it belongs to none (pure)."""
    source = entry.source.removesuffix(HOOK)
    return source if source.startswith(charts.SOURCE) else ""


def _same(one: Entry | None, other: Entry) -> bool:
    """Whether two entries are of the same object."""
    return one is not None and one.object.uid == other.object.uid


def _handed(entry: Entry, chart: Chart) -> Entry:
    """The entry of the former owner, as the new owner records it."""
    return msgspec.structs.replace(entry, order=chart.order, ledger=None, memo={})


def _compared(revisions: Sequence[Revision]) -> Sequence[Revision]:
    """The revision whose objects `helm upgrade` deletes if the new one does not have them: the last that was deployed,
    or else the last (pure)."""
    deployed = [it for it in revisions if it.release.status is HelmStatus.DEPLOYED]
    return (deployed or revisions)[-1:]


def _without(parts: Iterable[ReleaseObject], wanted: Iterable[ReleaseObject]) -> list[ReleaseObject]:
    """The objects of a release that Helm deletes, because the new revision does not have them. Hooks and the CRDs in
    `crds/` are not part of a revision (pure)."""
    keys = {obj.key for obj in wanted if not (obj.manifest.hook or obj.manifest.forever)}
    return [obj for obj in parts if obj.key not in keys and not obj.manifest.hook]


def _kept_alive(obj: Object) -> bool:
    """Whether `helm upgrade` leaves an object: it reads the annotation of the live object (pure)."""
    return (obj["metadata"].get("annotations") or {}).get(HELM_KEEP_ANNOTATION) == HELM_KEEP


def _terminating(wanted: Iterable[ReleaseObject], found: Mapping[str, Object]) -> ObjectRef | None:
    """An object that is being deleted: Helm would treat it as existing."""
    for obj in wanted:
        there = found.get(obj.key)
        if there and there["metadata"].get("deletionTimestamp") and not (obj.manifest.hook or obj.manifest.forever):
            return obj.ref
    return None


class _About(msgspec.Struct, rename="camel"):
    git_version: str
