"""Uninstalls a release from a member with Helm and its hooks, without deleting foreign objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api.meta import ObjectRef
from unwind.api.names import CHART_UNINSTALL_LABEL, Reason
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again, PermanentError, TransientError
from unwind.deploy.helm_install import HOOK, ReleaseObject, parts_of, release_entry_key
from unwind.helm import release_secrets
from unwind.helm.charts import HelmOptions
from unwind.helm.release_secrets import ChartManifest, HelmStatus, Revision, is_hook, is_own_hook, of_release
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unwind.api.unwind import Entry
    from unwind.helm.program import Helm
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.removal.helm_releases import HasASay

_AT_ONCE = 8
_log = logs.get(__name__)


class HelmReleases:
    """Uninstalls releases that `helm_install.install_or_upgrade` deployed; for `Removal(…, releases=…)`."""

    def __init__(self, helm: Helm | None) -> None:
        """`helm`: None if the program is not installed. Then releases are blocked, because their hooks cannot run."""
        self._helm = helm

    def release_of(self, entry: Entry) -> ObjectRef | None:
        word, _, rest = entry.source.partition(" ")
        namespace, _, name = rest.removesuffix(HOOK).partition("/")
        if word != "Helm" or not name:
            return None
        return ObjectRef(group="helm.sh", version="v1", kind="Release", namespace=namespace, name=name)

    def afterwards(self, entry: Entry) -> bool:
        return self.release_of(entry) is not None and entry.source.endswith(HOOK)

    def marked(self, entry: Entry, obj: Object) -> bool:
        release = self.release_of(entry)
        if release is None:
            return False
        if self.afterwards(entry):
            return is_hook(obj)
        return of_release(obj, namespace=release.namespace, release=release.name)

    def why_kept(self, entry: Entry) -> str:
        del entry
        return ""

    async def reserve(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        revisions = await release_secrets.history(member.client, namespace=release.namespace, release=release.name)
        if not revisions or revisions[-1].owner != owner:
            return revisions[-1].owner if revisions else ""
        last = revisions[-1]
        # Without the program, no profile can take it over either.
        if self._helm and last.release.status is not HelmStatus.UNINSTALLING:
            try:
                # The status that Helm sets, too. A takeover changes the same Secret: only one succeeds.
                await release_secrets.set_status(
                    member.client,
                    last,
                    HelmStatus.UNINSTALLING,
                    why="removed by unwind",
                    replica=self._helm.replica,
                )
            except (ConflictError, NotFoundError):
                raise Again(f"{release} was changed concurrently", after=0) from None
        return ""

    async def taken_by(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        revisions = await release_secrets.history(member.client, namespace=release.namespace, release=release.name)
        return revisions[-1].owner if revisions and revisions[-1].owner != owner else ""

    async def uninstall(
        self, member: Member, release: ObjectRef, *, owner: str, entries: Sequence[Entry], has_a_say: HasASay
    ) -> None:
        ours = [entry for entry in entries if self.release_of(entry) == release]
        await self._uninstallation(member, release, owner, ours, has_a_say).run()

    def _uninstallation(
        self, member: Member, release: ObjectRef, owner: str, ours: Sequence[Entry], has_a_say: HasASay
    ) -> Uninstallation:
        """`ours`: the inventory entries of the release."""
        uids = {release_entry_key(item.object): item.object.uid for item in ours if not self.afterwards(item)}
        hooks = {release_entry_key(item.object): item.object.uid for item in ours if self.afterwards(item)}
        return Uninstallation(
            helm=self._helm,
            member=member,
            release=release,
            owner=owner,
            uids=uids,
            hooks=hooks,
            has_a_say=has_a_say,
        )

    async def leave(self, member: Member, release: ObjectRef, *, owner: str) -> None:
        await unmark_release(member, namespace=release.namespace, release=release.name, owner=owner)


async def unmark_release(member: Member, *, namespace: str, release: str, owner: str) -> None:
    """Remove our labels from a release that stays (LeavePolicies). Its objects only have Helm's labels."""
    revisions = await release_secrets.history(member.client, namespace=namespace, release=release)
    await release_secrets.disown(member.client, [revision for revision in revisions if revision.owner == owner])


class ForeignObject(msgspec.Struct, frozen=True):
    """An object with the name of an object of a release, which the release did not create."""

    part: ReleaseObject
    there: dict[str, Any]


class Uninstallation:
    """The uninstall of one release. It can be repeated at any time, for example after a crash."""

    def __init__(
        self,
        *,
        helm: Helm | None,
        member: Member,
        release: ObjectRef,
        owner: str,
        uids: Mapping[str, str],
        hooks: Mapping[str, str],
        has_a_say: HasASay,
    ) -> None:
        """`uids`: the recorded objects of the release, by key. `hooks`: its recorded hooks."""
        self.member = member
        self.release = release
        self._helm = helm
        self._owner = owner
        self._has_a_say = has_a_say
        self._uids = uids
        self._hooks = hooks

    async def run(self) -> None:
        last = await self._last()
        if last is None:
            return
        if self._helm is None:
            raise PermanentError(
                f"cannot uninstall {self.release}: the helm program is not installed",
                reason=Reason.HELD,
                remedy="install Helm 3",
            )
        manifests = await asyncio.to_thread(release_secrets.release_manifests, last.release)
        parts = await parts_of(self.member, manifests, namespace=self.release.namespace)
        gone = await self._unserved(manifests, parts)
        others = await self._not_for_helm(parts)
        if gone or others:
            # Helm uninstalls a release in any status (pending, failed, uninstalling), so nothing else is corrected.
            await release_secrets.forget_manifests(self.member.client, last, [*gone, *others])
            _log.info("objects removed from release", release=str(self.release), objects=len(gone) + len(others))
            raise Again(f"the objects of others were taken out of {self.release}; its uninstall continues", after=0)
        options = HelmOptions.of_uninstalling(str(last.secret["metadata"]["labels"].get(CHART_UNINSTALL_LABEL, "")))
        # Helm does not check which cluster answers.
        await self.member.verify()
        await self._helm.uninstall(
            self.member.client.connection,
            namespace=self.release.namespace,
            release=self.release.name,
            patience=options.timeout,
            # The caller verifies absence. Only these hooks must wait for it.
            wait=any("post-delete" in (hook.events or ()) for hook in last.release.hooks or ()),
            hooks=options.hooks,
            cascade=options.cascade,
        )

    async def _last(self) -> Revision | None:
        """The revision that Helm uses; None if there is nothing of ours to uninstall."""
        revisions = await release_secrets.history(
            self.member.client, namespace=self.release.namespace, release=self.release.name
        )
        if not revisions:
            await self.member.verify()  # absence counts only if this is the recorded cluster
            return None
        return revisions[-1] if await self.owns(revisions[-1]) else None

    async def owns(self, last: Revision) -> bool:
        """Whether this revision may be uninstalled. Raises if that has to wait."""
        if last.owner == self._owner:
            return True
        # For example uninstalled and installed again by hand. Our objects are deleted by their uids.
        _log.info("foreign release left in place", release=str(self.release))
        return False

    async def _unserved(
        self, manifests: Sequence[ChartManifest], parts: Sequence[ReleaseObject]
    ) -> list[ChartManifest]:
        """Objects whose API versions are not served: Helm would fail on them. They are in the inventory and are deleted
        according to it."""
        there = {id(obj.manifest) for obj in parts if obj.served}
        unserved = [manifest for manifest in manifests if id(manifest) not in there]
        if not unserved:
            return []
        silent = set(await self.member.discovery.silent())
        for item in unserved:
            if f"{item.version}.{item.group}" in silent:
                raise TransientError(
                    f"cannot uninstall {self.release}: the API of {item.kind} {item.name} is unavailable",
                    remedy=f"will retry; see `kubectl get apiservice {item.version}.{item.group}`",
                )
        return unserved

    async def _not_for_helm(self, parts: Sequence[ReleaseObject]) -> list[ChartManifest]:
        """Objects that a deleter handles. Raises Again if Helm would delete a foreign object by its name."""
        others: list[ChartManifest] = []
        foreign: list[ForeignObject] = []

        async def look(part: ReleaseObject) -> None:
            try:
                there = await self.member.client.get(
                    part.resource, part.manifest.name, namespace=part.namespace or None
                )
            except NotFoundError:
                return
            if part.manifest.hook:
                ours = self.is_own_hook(part, there, self._hooks.get(part.key))
            else:
                ours = self._uids.get(part.key) == there["metadata"]["uid"]
            if not ours:
                foreign.append(ForeignObject(part, there))
            elif not part.manifest.hook and await self._has_a_say(part.resource, there):
                others.append(part.manifest)

        await gather_limited((look(obj) for obj in parts if obj.served and _deleted(obj.manifest)), limit=_AT_ONCE)
        if foreign:
            others += await self.without(sorted(foreign, key=lambda found: str(found.part.ref)))
        return others

    def is_own_hook(self, part: ReleaseObject, there: Object, uid: str | None) -> bool:
        """Whether an existing object that Helm would replace is a hook of this release."""
        del part
        return is_own_hook(there, uid)

    async def without(self, foreign: Sequence[ForeignObject]) -> list[ChartManifest]:
        """The manifests of foreign objects to take out of the release before it is uninstalled. Raises Again if it
        has to wait for them instead."""
        await self.hold(foreign)
        return []

    async def hold(self, foreign: Sequence[ForeignObject]) -> None:
        """Raise Again, until the first of these objects changes."""
        part, uid = foreign[0].part, foreign[0].there["metadata"]["uid"]
        names = ", ".join(str(item.part.ref) for item in foreign)
        why = (
            f"cannot uninstall {self.release}: Helm would delete {names} by name, not created by this release;"
            " rename or remove it"
        )
        changes = await self.member.watches.changes(part.resource, namespace=part.namespace, name=part.manifest.name)
        # It may have been deleted before the watch started.
        seen = await self.member.client.sighting(
            part.resource, part.manifest.name, uid=uid, namespace=part.namespace or None
        )
        if seen.absent:
            changes.close()
            raise Again(why, after=0)
        raise Again(why, until=changes)


def _deleted(manifest: ChartManifest) -> bool:
    """Whether Helm deletes an object of this name during the uninstall."""
    return manifest.on_delete and manifest.replaced if manifest.hook else not manifest.kept
