"""A chart brought onto a member: everything that Helm creates is in the inventory, and nothing that is not ours is
touched."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import OWNER_LABEL, Reason
from unwind.api.resources import NAMESPACES, SECRETS, Resource
from unwind.api.unwind import Entry, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.helm import releases
from unwind.helm.program import HelmError
from unwind.helm.releases import ChartManifest, HelmRelease, HelmStatus, Revision, is_hook, is_own_hook, of_release
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.deploy.owner_marks import DeploymentOwner
    from unwind.helm.charts import Chart
    from unwind.helm.program import Helm
    from unwind.kube.client import Object
    from unwind.members.member import Member

HOOK = " hook"
"""What the source of a hook's entry ends with."""
_AT_ONCE = 8
_SHOWN = 5


class Account(msgspec.Struct, frozen=True):
    """What somebody of ours has written down of a release."""

    whose: str
    """For people: the profile."""
    entries: Mapping[str, Entry] = {}
    """By key."""


class Book(Protocol):
    """The inventories, as far as they tell of one release on one member."""

    async def mine(self) -> Mapping[str, Entry]:
        """What is written down of it for who deploys."""

    async def theirs(self, owner: str) -> Account:
        """What is for another owner, by its uid."""

    async def record(self, changes: Mapping[str, Entry | None]) -> None:
        """Write entries down for who deploys, and take those out that are None, before it returns."""


class ReleaseObject(msgspec.Struct, frozen=True):
    """An object of a release, where it belongs on this member."""

    manifest: ChartManifest
    resource: Resource
    namespace: str = ""
    """Empty for an object of the whole cluster."""
    served: bool = True
    """Whether the member knows its kind yet: the chart itself may bring the CRD."""

    @property
    def ref(self) -> ObjectRef:
        it = self.resource
        name = self.manifest.name
        return ObjectRef(group=it.group, version=it.version, kind=it.kind, namespace=self.namespace, name=name)

    @property
    def key(self) -> str:
        """Its entry in the inventory: the same for every version of its kind."""
        return key_of(self.ref)


class Deployed(msgspec.Struct, frozen=True):
    """What a chart has become."""

    release: HelmRelease
    changed: bool
    """Whether Helm had anything to do."""
    objects: tuple[ObjectRef, ...] = ()
    """What is on the member, with uids; without hooks."""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""


class Preview(msgspec.Struct, frozen=True):
    """What would become of it (DryRun)."""

    installs: bool
    """Whether there is no such release yet."""
    changes: bool
    objects: tuple[ObjectRef, ...] = ()
    conflicts: tuple[str, ...] = ()
    taken_from: str = ""
    """For people: the profile that it would be taken over from."""


class HelmConflictError(PermanentError):
    """Something that is not ours is in the way. Nothing was touched."""

    def __init__(
        self, what: str, conflicts: Iterable[str], *, remedy: str = "remove it, or choose another name"
    ) -> None:
        self.conflicts = tuple(conflicts)
        named = ", ".join(self.conflicts[:_SHOWN])
        more = f" and {len(self.conflicts) - _SHOWN} more" if len(self.conflicts) > _SHOWN else ""
        super().__init__(f"{what}: {named}{more}", reason=Reason.NOT_OURS, remedy=remedy)


class ReleaseTakenError(HelmConflictError):
    """The release belongs to another profile, and stays with it."""

    def __init__(self, release: str, account: Account, tier: int | None) -> None:
        self.account = account
        known = "" if tier is None else f", whose tier is {tier}"
        remedy = "give the profile a lower tier, or choose another name"
        super().__init__(f"it belongs to {account.whose}{known}", [release], remedy=remedy)


def key_of(ref: ObjectRef) -> str:
    """The key of an object's entry, by what it is called and not by what it is."""
    name = f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.name}"
    return f"helm-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


async def deploy(helm: Helm, member: Member, chart: Chart, *, owner: DeploymentOwner, book: Book) -> Deployed:
    """Have the release as the chart says it, and return when Helm is done and all of it is in the inventory.

    A release of a profile whose tier is higher is taken over: what that one has written down of it is written down
    here first, then the release itself says whose it is.

    It can be called again at any time, after a crash in particular. Raises HelmConflictError where something that is
    not ours is in the way, and HelmError with what Helm said.
    """
    return await _Deployment(helm, member, chart, owner, book).run()


async def preview(helm: Helm, member: Member, chart: Chart, *, owner: DeploymentOwner, book: Book) -> Preview:
    """What `deploy` would do, with nothing changed."""
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
        """Whose it was, where it is taken over."""

    async def run(self) -> Deployed:
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
        dropped = _without(await self._of(revisions), wanted)
        found = await self._found([*wanted, *dropped])
        if conflicts := self._conflicts([*wanted, *dropped], found):
            raise HelmConflictError(f"{self._chart.source} would take over what is not its own", conflicts)
        if going := _terminating(wanted, found):
            raise TransientError(f"{going} is being deleted; when it is gone, {self._release} is deployed")
        await self._intend(wanted, found)
        if last and self._rival:
            await self._mark(last)
        await self._namespace()
        try:
            await self._helm.upgrade(
                self._member.client.connection, self._chart, owner=self._owner.uid, tier=self._owner.tier
            )
        except HelmError:
            # What it got done is there all the same.
            await self._confirm(await self._ours(), wanted)
            raise
        revisions = await self._ours()
        if not revisions:
            raise TransientError(f"{self._chart.source} was deployed, and is gone again")
        objects = await self._confirm(revisions, wanted)
        return Deployed(revisions[-1].release, changed=True, objects=objects, taken_from=taken_from)

    async def preview(self) -> Preview:
        try:
            revisions = await self._claimed()
        except HelmConflictError as error:
            return Preview(installs=False, changes=False, conflicts=error.conflicts)
        last = revisions[-1] if revisions else None
        wanted = await self._render(upgrade=last is not None)
        affected = [*wanted, *_without(await self._of(revisions), wanted)]
        return Preview(
            installs=last is None,
            changes=last is None or bool(self._rival) or last.inputs != self._chart.inputs,
            objects=tuple(item.ref for item in wanted if not item.manifest.hook),
            conflicts=tuple(self._conflicts(affected, await self._found(affected))),
            taken_from=self._rival.whose if self._rival else "",
        )

    # Whose it is

    async def _claimed(self) -> list[Revision]:
        """The revisions of the release, if it is ours, or to be taken over."""
        self._entries = dict(await self._book.mine())
        revisions = await self._history()
        last = revisions[-1] if revisions else None
        if last is None or last.owner == self._owner.uid:
            return revisions
        if not last.owner:
            raise HelmConflictError(f"{self._chart.source} is somebody else's", [self._release])
        account = await self._book.theirs(last.owner)
        # Where it does not say its tier, nobody knows: it stays whose it is.
        if last.tier is None or last.tier <= self._owner.tier:
            raise ReleaseTakenError(self._release, account, last.tier)
        if last.release.status is HelmStatus.UNINSTALLING:
            raise TransientError(f"{self._release} is being uninstalled for {account.whose}; then it is installed anew")
        self._rival = account
        return revisions

    async def _ours(self) -> list[Revision]:
        """The revisions after Helm was at it."""
        revisions = await self._history()
        if revisions and revisions[-1].owner != self._owner.uid:
            raise TransientError(f"{self._release} changed hands while it was deployed")
        return revisions

    async def _history(self) -> list[Revision]:
        chart = self._chart
        return await releases.history(self._member.client, namespace=chart.namespace, release=chart.release)

    async def _mark(self, last: Revision) -> None:
        """Have the release say that it is ours."""
        try:
            await releases.mark(self._member.client, last, owner=self._owner.uid, tier=self._owner.tier)
        except (ConflictError, NotFoundError) as error:
            raise TransientError(f"{self._release} changed while it was looked at") from error

    async def _give_up(self, account: Account) -> None:
        """Forget what another has taken over, as far as it is written down there: somebody has to answer for it."""
        theirs = account.entries
        lost = [key for key, entry in self._entries.items() if key in theirs and _same(entry, theirs[key])]
        await self._write(dict.fromkeys(lost))

    @property
    def _release(self) -> str:
        return f"release {self._chart.namespace}/{self._chart.release}"

    # What there is

    async def _recover(self, last: Revision | None) -> Revision | None:
        """Put a release right that Helm died over: it would refuse to go on with it."""
        if last is None or not (last.release.pending or last.release.status is HelmStatus.UNINSTALLING):
            return last
        connection, began, replica = self._member.client.connection, last.release.began, last.replica
        if self._helm.at_work(connection, self._chart, began, replica=replica):
            who = f"replica {replica}" if replica and replica != self._helm.replica else "another Helm"
            raise TransientError(f"{last.release} is {last.release.info.status}: {who} may be at it")
        why = f"it was {last.release.info.status}, and nobody was at it"
        return await releases.set_status(
            self._member.client, last, HelmStatus.FAILED, why=why, replica=self._helm.replica
        )

    async def _render(self, *, upgrade: bool) -> list[ReleaseObject]:
        """What the chart would bring."""
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
        """The objects of all these revisions: after an upgrade that broke off, those of the one before it are there."""
        found: dict[str, ReleaseObject] = {}
        for revision in revisions:
            manifests = await asyncio.to_thread(releases.manifests, revision.release)
            parts = await parts_of(self._member, manifests, namespace=self._chart.namespace)
            found |= {it.key: it for it in parts}
        return list(found.values())

    async def _found(self, wanted: Iterable[ReleaseObject]) -> dict[str, Object]:
        """What stands under these names now."""
        found: dict[str, Object] = {}

        async def look(one: ReleaseObject) -> None:
            with suppress(NotFoundError):
                found[one.key] = await self._member.client.get(
                    one.resource, one.manifest.name, namespace=one.namespace or None
                )

        await gather_limited((look(obj) for obj in wanted if obj.served), limit=_AT_ONCE)
        return found

    async def _standing(self, objects: list[ReleaseObject]) -> tuple[ObjectRef, ...] | None:
        """The objects, if all of them are there as they were written down; None if one is missing, or going."""
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

    def _conflicts(self, affected: Iterable[ReleaseObject], found: Mapping[str, Object]) -> list[str]:
        """What Helm would change or delete by its name, and that is not ours."""
        chart, conflicts = self._chart, []
        entries = {**self._entries, **(self._rival.entries if self._rival else {})}
        for obj in affected:
            there = found.get(obj.key)
            if there is None or obj.manifest.forever:
                continue
            known = entries.get(obj.key)
            if obj.manifest.hook:
                # Whose release a hook is of, it does not say: only that it is one.
                foreign = obj.manifest.replaced and not is_own_hook(there, known.object.uid if known else None)
            else:
                # Somebody may have created it anew with Helm's marks on it, from a backup say.
                other = known and known.object.uid and known.object.uid != there["metadata"]["uid"]
                foreign = bool(other) or not of_release(there, namespace=chart.namespace, release=chart.release)
            if foreign:
                conflicts.append(str(obj.ref))
        return sorted(conflicts)

    # What is written down

    async def _namespace(self) -> None:
        """Create the release's namespace, with our mark: Helm would leave it behind, and nobody would know why. One
        that was created for the release when it was another's is ours with it."""
        chart, client = self._chart, self._member.client
        ref = ObjectRef(version="v1", kind=NAMESPACES.kind, name=chart.namespace)
        key = key_of(ref)
        try:
            there = await client.get(NAMESPACES, chart.namespace)
        except NotFoundError:
            pass
        else:
            entry, metadata = self._entries.get(key), there["metadata"]
            whose = (metadata.get("labels") or {}).get(OWNER_LABEL)
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
            await self._write({key: None})  # somebody was faster: it is theirs
            return
        await self._write({key: self._entry(ref, NAMESPACES, uid=made["metadata"]["uid"])})

    async def _intend(self, wanted: list[ReleaseObject], found: Mapping[str, Object]) -> None:
        """Write down what Helm will create, before it does; and first what it has created for who had it before."""
        chart = self._chart
        if self._rival:
            taken = {key: _handed(entry, chart) for key, entry in self._rival.entries.items()}
            await self._write({key: one for key, one in taken.items() if not _same(self._entries.get(key), one)})
        # Helm's own record: as long as there is one, there is something to uninstall.
        first = ObjectRef(
            version="v1", kind=SECRETS.kind, namespace=chart.namespace, name=f"sh.helm.release.v1.{chart.release}.v1"
        )
        intended = {key_of(first): self._entry(first, SECRETS, hook=True)}
        for one in wanted:
            it = one.manifest
            if not (it.forever and one.key in found):
                intended[one.key] = self._entry(one.ref, one.resource, hook=it.hook, kept=it.kept)
        # A hook that Helm deletes and creates anew has another uid then, which is not known if we die in between.
        replaced = {obj.key for obj in wanted if obj.manifest.hook and obj.manifest.replaced}
        await self._write(
            {
                key: entry
                for key, entry in intended.items()
                if key not in self._entries or (key in replaced and self._entries[key] != entry)
            }
        )

    async def _confirm(self, revisions: list[Revision], wanted: list[ReleaseObject]) -> tuple[ObjectRef, ...]:
        """Write down what there is now, with uids; what is gone is taken out."""
        chart, refs = self._chart, []
        changes: dict[str, Entry | None] = {}
        staying = {obj.key for obj in wanted}
        forever = [obj for obj in wanted if obj.manifest.forever and obj.key in self._entries]
        parts = [*await self._of(revisions), *forever]
        found = await self._found(part for part in parts if not part.manifest.on_delete)
        for part in parts:
            there = found.get(part.key)
            if part.manifest.hook:
                # One for when the release goes is created then, and maybe more than once.
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
        """What is written down of a hook after Helm was at it: its uid, if it is there."""
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
    """Where objects of a chart belong on a member; those of kinds that nobody serves are left out."""
    manifests = list(manifests)
    # What the chart's own CRDs will have served counts as well.
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


def _same(one: Entry | None, other: Entry) -> bool:
    """Whether two entries are of the same object."""
    return one is not None and one.object.uid == other.object.uid


def _handed(entry: Entry, chart: Chart) -> Entry:
    """The entry of another, as it is written down for who takes its release over."""
    return msgspec.structs.replace(entry, order=chart.order, ledger=None, memo={})


def _without(parts: Iterable[ReleaseObject], others: Iterable[ReleaseObject]) -> list[ReleaseObject]:
    """Those that are not among the others, and are no hooks."""
    keys = {obj.key for obj in others}
    return [obj for obj in parts if obj.key not in keys and not obj.manifest.hook]


def _terminating(wanted: Iterable[ReleaseObject], found: Mapping[str, Object]) -> ObjectRef | None:
    """One that is being deleted: Helm would find it there, and be content."""
    for obj in wanted:
        there = found.get(obj.key)
        if there and there["metadata"].get("deletionTimestamp") and not (obj.manifest.hook or obj.manifest.forever):
            return obj.ref
    return None


class _About(msgspec.Struct, rename="camel"):
    git_version: str
