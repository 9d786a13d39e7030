"""Removes Helm releases that no deployer drives: by the chain and as Helm does, until their objects are absent.

Unlike the releases of profiles, these carry no mark of Unwind. What may be removed is decided right before it is
removed: the release has no deployer, and its objects carry Helm's mark for it. Others may upgrade it until the end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import Reason
from unwind.api.resources import SECRETS
from unwind.api.unwind import Entry, EntryState
from unwind.companions import helm_release_reader, helm_release_rules, snapshots
from unwind.companions.companion import Companion
from unwind.companions.helm_release_rules import ReleaseName
from unwind.concurrency import unless
from unwind.deleters.chain_attempt import Failed
from unwind.deleters.keep_link import keep_link
from unwind.deleters.outcomes import Again, Kept
from unwind.deploy.helm_install import HOOK, parts_of
from unwind.deploy.helm_uninstall import HelmReleases, Uninstallation
from unwind.helm import release_secrets
from unwind.helm.charts import TIMEOUT
from unwind.inventory.inventories import items
from unwind.inventory.writer import add_found
from unwind.teardown.step_removers import InventoryRemover, UnmarkedRemover
from unwind.teardown.verified_removal import VerifiedRemoval
from unwind.why.blocker_causes import actor_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from unwind.api.unwind import Inventory
    from unwind.companions.helm_release_drivers import Driver
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.deleters.chain_attempt import Waiting
    from unwind.deleters.registration import Registration
    from unwind.deploy.helm_uninstall import ForeignObject
    from unwind.helm.program import Helm
    from unwind.helm.release_secrets import Revision
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.removal.helm_release_removal import HasASay
    from unwind.teardown.step_removers import StepContext, StepRemoval

# Nothing reports when a person corrects a policy or a deployer.
_LOOK_AGAIN = 30.0


class ReleaseOwner(Companion, Protocol):
    """What the remover asks the companion."""

    async def driven(self, target: ClusterTarget, member: Member) -> Mapping[ReleaseName, Driver]:
        """The releases of a cluster that an object of a deployer names, with that object."""

    async def driver_of(
        self, target: ClusterTarget, member: Member, loaded: LoadedRelease, driven: Mapping[ReleaseName, Driver]
    ) -> Driver | None:
        """Who drives a release. `driven`: those that an object of a deployer names."""


class ReleaseRemover(UnmarkedRemover):
    """Removes the steps of releases."""

    def __init__(
        self,
        companion: ReleaseOwner,
        helm: Helm | None,
        *,
        named: Callable[[ClusterTarget, ObjectRef], Awaitable[bool]],
    ) -> None:
        """`helm`: None if the program is not installed. `named`: whether a policy names a release exactly."""
        self._companion = companion
        self._helm = helm
        self._named = named

    def begin(self, context: StepContext) -> StepRemoval:
        return _ReleaseRemoval(_Checks(self._companion, self._named, context), self._companion, self._helm, context)


class _Checks:
    """Whether a release may be removed now."""

    def __init__(
        self,
        companion: ReleaseOwner,
        named: Callable[[ClusterTarget, ObjectRef], Awaitable[bool]],
        context: StepContext,
    ) -> None:
        self.target = context.target
        self._companion = companion
        self._named = named
        self._ref = context.step.object
        self._clock = context.means.clock
        self._pending_since: dict[str, float] = {}
        """When a revision was first seen as pending, by the name of its Secret."""

    async def check(self, member: Member, loaded: LoadedRelease) -> None:
        """Raise Again if the release must not be removed, or not yet."""
        ref = self._ref
        driven = await self._companion.driven(self.target, member)
        if driver := await self._companion.driver_of(self.target, member, loaded, driven):
            raise Again(f"cannot uninstall {ref}: it {driver.why}", after=_LOOK_AGAIN, code=Reason.HELD)
        if loaded.release.pending and (seconds := self._still_running(loaded.last)) > 0:
            status = loaded.release.info.status
            raise Again(
                f"cannot uninstall {ref} yet: it is {status}, and Helm may still be running; will retry", after=seconds
            )
        reaching = helm_release_rules.reaching_hooks(loaded.hooks, namespace=ref.namespace)
        if reaching and not await self._named(self.target, ref):
            raise Again(
                f"cannot uninstall {ref}: its hooks would create {', '.join(reaching)} with the rights of Unwind; name"
                " the release and its namespace in a TeardownPolicy, without wildcards, to allow it",
                after=_LOOK_AGAIN,
                code=Reason.HELD,
            )

    def _still_running(self, last: Revision) -> float:
        """Seconds until a Helm that started this revision has ended: its timeout, by default. A longer one cannot be
        known."""
        meta, now = msgspec.convert(last.secret["metadata"], ObjectMeta), self._clock.monotonic()
        waited = now - self._pending_since.setdefault(meta.name, now)
        if began := meta.creation_timestamp:
            # The clock of the member may be wrong, in both directions.
            waited = max(waited, (self._clock.now() - began).total_seconds())
        return TIMEOUT - waited


class _ReleaseRemoval(VerifiedRemoval):
    """The removal of one release. It starts again if the release is upgraded meanwhile."""

    def __init__(self, checks: _Checks, companion: Companion, helm: Helm | None, context: StepContext) -> None:
        super().__init__(context)
        self._checks = checks
        self._companion = companion
        self._helm = helm
        self._name = ReleaseName(self._ref.namespace, self._ref.name)
        self._removed: frozenset[str] = frozenset()
        self._outdated = asyncio.Event()
        """Set when there is a revision that is not recorded."""

    @property
    def removed(self) -> Collection[str]:
        return self._removed.union(self._inner.removed if self._inner else ())

    def go_another_way(self, target: ClusterTarget) -> None:
        self._checks.target = target
        super().go_another_way(target)

    def _actor(self, what: Waiting | Failed) -> str:
        return actor_of(str(what.reason)) if isinstance(what, Failed) else f"the owner of {self._ref}"

    async def run(self) -> None:
        while True:
            self._outdated.clear()
            chunks = await self._retry(self._record)
            self._inner = inner = self._begin(chunks)
            done = await unless(self._outdated, inner.run())
            # It may have been upgraded or installed again.
            if done and await self._retry(self._is_over):
                break
            self._removed = frozenset(self.removed)
        self._verified = True
        self._context.changed()

    def _begin(self, chunks: Sequence[Inventory]) -> StepRemoval:
        context, means = self._context, self._context.means
        recorded = [item.entry for item in items(chunks)]
        releases = _PlainReleases(self._helm, self._checks, self._outdated)
        link = _keep_taken(self._ref, (entry for entry in recorded if releases.is_part(entry)))
        means = msgspec.structs.replace(means, deleters=(*means.deleters, link))
        return InventoryRemover(releases).begin(
            msgspec.structs.replace(context, means=means, chunks=chunks, target=self._target)
        )

    async def _record(self) -> Sequence[Inventory]:
        """The Inventories of the release, with everything that its last revision names: it may have been upgraded since
        they were written."""
        means = self._context.means
        async with self._member(self._context.chunks) as member:
            await member.verify()
            loaded = await helm_release_reader.load(member, self._name)
            if loaded and not self._context.chunks:
                raise Again(
                    f"cannot uninstall {self._ref}: its objects were not recorded; uninstall it with `helm uninstall`",
                    code=Reason.HELD,
                    after=60,
                )
            if loaded:
                await self._checks.check(member, loaded)
                handle = await helm_release_reader.handle_of(member, loaded, self._ref)
                taken = await snapshots.take(snapshots.MemberObjects(member), self._companion, handle)
                await self._add(taken.entries | await self._hooks(member, loaded))
        return await means.inventories.of(self._ref.uid)

    async def _hooks(self, member: Member, loaded: LoadedRelease) -> dict[str, Entry]:
        """The hooks of the uninstall. Helm creates them then, and leaves most of them behind: they are deleted
        afterwards."""
        manifests = [it for it in loaded.hooks if it.on_delete]
        return {
            f"hook-{snapshots.entry_key(part.ref)}": Entry(
                object=part.ref,
                resource=part.resource.plural,
                state=EntryState.INTENDED.value,
                source=snapshots.source_of(self._ref) + HOOK,
            )
            for part in await parts_of(member, manifests, namespace=self._name.namespace)
            if part.served
        }

    async def _add(self, entries: Mapping[str, Entry]) -> None:
        """Record objects that are not recorded yet, or that were created again."""
        inventories = self._context.means.inventories
        await add_found(inventories, await inventories.of(self._ref.uid), entries)

    async def _is_over(self) -> bool:
        """Whether the release is absent, or stays on purpose."""
        recorded = items(await self._context.means.inventories.of(self._ref.uid))
        if any(item.entry.left and _stores(item.entry) for item in recorded):
            return True
        async with self._member(self._context.chunks) as member:
            return await helm_release_reader.load(member, self._name) is None


class _PlainReleases(HelmReleases):
    """Uninstalls releases without a mark of Unwind. The source of their entries is `Release NAMESPACE/NAME`."""

    def __init__(self, helm: Helm | None, checks: _Checks, outdated: asyncio.Event) -> None:
        super().__init__(helm)
        self._checks = checks
        self._outdated = outdated

    def release_of(self, entry: Entry) -> ObjectRef | None:
        word, _, rest = entry.source.partition(": ")[0].removesuffix(HOOK).partition(" ")
        namespace, _, name = rest.partition("/")
        if word != helm_release_reader.KIND or not name:
            return None
        return ObjectRef(group=helm_release_reader.GROUP, version="v1", kind=word, namespace=namespace, name=name)

    def why_kept(self, entry: Entry) -> str:
        return snapshots.why_kept(entry) if self.release_of(entry) else ""

    def is_part(self, entry: Entry) -> bool:
        """Whether an entry is an object that carries Helm's mark for its release."""
        if self.release_of(entry) is None or self.afterwards(entry) or entry.kept or _stores(entry):
            return False
        return bool(entry.object.uid)

    async def reserve(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        del member, release, owner  # nothing is written: it is checked right before the uninstall
        return ""

    async def taken_by(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        del member, release, owner
        return ""

    async def leave(self, member: Member, release: ObjectRef, *, owner: str) -> None:
        del member, release, owner

    def _uninstallation(
        self, member: Member, release: ObjectRef, owner: str, ours: Sequence[Entry], has_a_say: HasASay
    ) -> Uninstallation:
        uninstallation = _PlainUninstallation(
            helm=self._helm,
            member=member,
            release=release,
            owner=owner,
            objects=[item for item in ours if not self.afterwards(item)],
            hooks=None,
            has_a_say=has_a_say,
        )
        uninstallation.follow(self._checks, self._outdated, {item.object.name for item in ours if _stores(item)})
        return uninstallation


class _PlainUninstallation(Uninstallation):
    """The uninstall of a release without a mark of Unwind."""

    _checks: _Checks
    _outdated: asyncio.Event
    _revisions: Collection[str]

    def follow(self, checks: _Checks, outdated: asyncio.Event, revisions: Collection[str]) -> None:
        """`outdated`: set if there is another revision than these Secrets hold."""
        self._checks, self._outdated, self._revisions = checks, outdated, revisions

    async def owns(self, last: Revision) -> bool:
        changes = await self.member.watches.changes(
            SECRETS, namespace=self.release.namespace, name=str(last.secret["metadata"]["name"])
        )
        try:
            loaded = await helm_release_reader.load(self.member, ReleaseName(self.release.namespace, self.release.name))
            if loaded is None or not loaded.last.is_same(last):
                raise self._changed()
            await self._checks.check(self.member, loaded)
        except Again as again:
            again.until = changes
            raise
        except BaseException:
            changes.close()
            raise
        changes.close()
        if last.secret["metadata"]["name"] not in self._revisions:
            self._restart()
        return True

    async def wait_for(self, foreign: Sequence[ForeignObject]) -> None:
        hooks = [it for it in foreign if it.part.manifest.hook]
        if hooks:
            await self.hold(hooks)
        release = self.release
        if any(
            release_secrets.of_release(it.there, namespace=release.namespace, release=release.name) for it in foreign
        ):
            self._restart()
        # The others only share a name with an object of the release.

    def _restart(self) -> None:
        self._outdated.set()
        raise Again(f"{self.release} was upgraded meanwhile; its new objects are recorded first", after=_LOOK_AGAIN)


def _stores(entry: Entry) -> bool:
    """Whether an entry is the Secret of a revision."""
    return helm_release_rules.stores_release(entry.object)


def _keep_taken(release: ObjectRef, parts: Iterable[Entry]) -> Registration:
    """A deleter that keeps objects of a release that another owner has taken over since they were recorded."""
    uids = frozenset(entry.object.uid for entry in parts)

    def taken(obj: Object) -> Kept | None:
        ours = release_secrets.of_release(obj, namespace=release.namespace, release=release.name)
        if ours or obj["metadata"]["uid"] not in uids:
            return None
        message = f"taken over: it no longer has Helm's annotations for {release}; {helm_release_rules.STAYS}"
        return Kept(Reason.NOT_OURS, message, by="unwind")

    return keep_link(
        "keep-taken-release",
        taken,
        when=lambda obj: taken(obj) is not None,
        about="Keep objects that no longer carry Helm's mark for their release.",
    )
