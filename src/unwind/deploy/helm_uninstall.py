"""Uninstalls a release from a member as Helm does, with its hooks, but deletes each object by its uid.

`helm uninstall` is not used: it reads the release again, and users who can write its Secret can exchange it in between.
What was checked is carried out here from memory, and the Secrets are deleted only as they were read.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api.meta import ObjectRef
from unwind.api.names import CHART_UNINSTALL_LABEL, HELM_HOOK_ANNOTATION, Reason
from unwind.api.resources import SECRETS
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again, PermanentError, TransientError
from unwind.deploy.helm_hooks import HookRunner, ReleaseHook
from unwind.deploy.helm_install import HOOK, ReleaseObject, chart_of, parts_of, release_entry_key
from unwind.helm import release_secrets
from unwind.helm.charts import SOURCE, HelmOptions
from unwind.helm.release_secrets import POST_DELETE, PRE_DELETE, HelmStatus, Revision, is_hook, is_own_hook, of_release
from unwind.kube.errors import ApiError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.unwind import Entry
    from unwind.helm.program import Helm
    from unwind.helm.release_secrets import ChartManifest, HelmRelease, UninstallHook
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import HasASay

_AT_ONCE = 8
# A busy object may have changed between read and write.
_TRIES = 8
# In case no event reports that a user has acted.
_LOOK_AGAIN = 30.0
_log = logs.get(__name__)


class HelmReleases:
    """Uninstalls releases that `helm_install.install_or_upgrade` deployed; for `Removal(…, releases=…)`."""

    def __init__(self, helm: Helm | None) -> None:
        """`helm`: None if the program is not installed. Then releases are held."""
        self._helm = helm

    def release_of(self, entry: Entry) -> ObjectRef | None:
        namespace, _, name = chart_of(entry).removeprefix(SOURCE).partition("/")
        if not name:
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

    def storage(self, release: ObjectRef) -> str:
        """The namespace of the Secrets of a release."""
        return release.namespace

    async def reserve(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        revisions = await self._history(member, release)
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
                raise Again(f"{release} was changed concurrently; will retry", after=0) from None
        return ""

    async def taken_by(self, member: Member, release: ObjectRef, *, owner: str) -> str:
        revisions = await self._history(member, release)
        return revisions[-1].owner if revisions and revisions[-1].owner != owner else ""

    async def _history(self, member: Member, release: ObjectRef) -> list[Revision]:
        return await release_secrets.history(member.client, namespace=self.storage(release), release=release.name)

    async def uninstall(
        self,
        member: Member,
        release: ObjectRef,
        *,
        owner: str,
        entries: Sequence[Entry],
        has_a_say: HasASay,
    ) -> None:
        ours = [entry for entry in entries if self.release_of(entry) == release]
        await self._uninstallation(member, release, owner, ours, has_a_say).run()

    def _uninstallation(
        self, member: Member, release: ObjectRef, owner: str, ours: Sequence[Entry], has_a_say: HasASay
    ) -> Uninstallation:
        """`ours`: the inventory entries of the release."""
        objects = [item for item in ours if not self.afterwards(item)]
        hooks = {release_entry_key(item.object): item.object.uid for item in ours if self.afterwards(item)}
        return Uninstallation(
            helm=self._helm,
            member=member,
            release=release,
            owner=owner,
            objects=objects,
            hooks=hooks,
            has_a_say=has_a_say,
        )

    async def leave(self, member: Member, release: ObjectRef, *, owner: str) -> None:
        await unmark_release(member, namespace=self.storage(release), release=release.name, owner=owner)


async def unmark_release(member: Member, *, namespace: str, release: str, owner: str) -> None:
    """Remove our labels from a release that stays (LeavePolicies). Its objects only have Helm's labels. `namespace`: of
    its Secrets."""
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
        objects: Sequence[Entry],
        hooks: Mapping[str, str] | None,
        has_a_say: HasASay,
        storage: str = "",
    ) -> None:
        """`objects`: the recorded objects of the release; those that are kept stay. `hooks`: its recorded hooks by key;
        None if hooks need not be recorded: then any object with Helm's annotation for hooks counts as one. `storage`:
        the namespace of its Secrets, if it is not its own."""
        self.member = member
        self.release = release
        self.storage = storage or release.namespace
        self._helm = helm
        self._owner = owner
        self._has_a_say = has_a_say
        self._kept = {release_entry_key(item.object) for item in objects if item.kept}
        self._uids = {release_entry_key(item.object): item.object.uid for item in objects}
        self._hooks = hooks

    async def run(self) -> None:
        revisions = await self._to_uninstall()
        if not revisions:
            return
        last = revisions[-1]
        if self._helm is None:
            raise PermanentError(
                f"cannot uninstall {self.release}: the helm program is not installed",
                reason=Reason.HELD,
                remedy="install Helm 3",
            )
        options = HelmOptions.of_uninstalling(str(last.secret["metadata"]["labels"].get(CHART_UNINSTALL_LABEL, "")))
        manifests, uninstall_hooks = await asyncio.to_thread(_read, last.release)
        parts = await self._served([*manifests, *(it.manifest for it in uninstall_hooks)])
        # What was recorded as kept stays, also if the release does not say so: it is in the ledger.
        objects = [part for it in manifests if (part := parts.get(id(it))) and part.key not in self._kept]
        hooks = [
            ReleaseHook(it.hook, parts[id(it.manifest)], it.document)
            for it in uninstall_hooks
            if options.hooks and id(it.manifest) in parts
        ]
        await self.check_hooks(last, hooks)
        await self._check_foreign([*objects, *(it.part for it in hooks)])
        await self.member.verify()
        if last.release.status is not HelmStatus.UNINSTALLING:
            revisions[-1] = await self._mark(last)
        failure = await self._carry_out(objects, hooks, options)
        await self._delete_secrets(revisions)
        if failure:
            raise failure

    def _changed(self) -> Again:
        return Again(f"{self.release} was changed concurrently; it is checked again", after=0)

    # Checking

    async def _to_uninstall(self) -> list[Revision]:
        """All revisions, the oldest first; none if there is nothing of ours to uninstall."""
        revisions = await self._history()
        if not revisions:
            await self.member.verify()  # absence counts only if this is the recorded cluster
            return []
        return revisions if await self.owns(revisions[-1]) else []

    async def _history(self) -> list[Revision]:
        return await release_secrets.history(self.member.client, namespace=self.storage, release=self.release.name)

    async def owns(self, last: Revision) -> bool:
        """Whether this revision may be uninstalled. Raises if that has to wait."""
        if last.owner == self._owner:
            return True
        # For example uninstalled and installed again by hand. Our objects are deleted by their uids.
        _log.info("foreign release left in place", release=str(self.release))
        return False

    async def _served(self, manifests: Sequence[ChartManifest]) -> dict[int, ReleaseObject]:
        """The objects by the id of their manifest. Those whose API versions are not served are left out: they are in
        the inventory and are deleted according to it."""
        parts = await parts_of(self.member, manifests, namespace=self.release.namespace)
        served = {id(part.manifest): part for part in parts if part.served}
        unserved = [manifest for manifest in manifests if id(manifest) not in served]
        if unserved:
            silent = set(await self.member.discovery.silent())
            for item in unserved:
                if f"{item.version}.{item.group}" in silent:
                    raise TransientError(
                        f"cannot uninstall {self.release}: the API of {item.kind} {item.name} is unavailable",
                        remedy=f"will retry; see `kubectl get apiservice {item.version}.{item.group}`",
                    )
        return served

    async def check_hooks(self, last: Revision, hooks: Sequence[ReleaseHook]) -> None:
        """Raise Again if the hooks of this revision must not run: its owner did not deploy them."""
        if self._hooks is None:
            return
        unknown = [str(it.part.ref) for it in hooks if it.part.key not in self._hooks]
        if not unknown:
            return
        metadata = last.secret["metadata"]
        changes = await self.member.watches.changes(SECRETS, namespace=self.storage, name=str(metadata["name"]))
        raise Again(
            f"cannot uninstall {self.release}: its hooks {', '.join(unknown)} are not in the chart that was deployed;"
            " roll the release back, or uninstall it with `helm uninstall`",
            until=changes,
            after=_LOOK_AGAIN,
            code=Reason.HELD,
        )

    async def _check_foreign(self, parts: Sequence[ReleaseObject]) -> None:
        """Raise Again if the release has to wait: for a foreign object with the name of one of its objects, or for an
        object that was protected since."""
        foreign: list[ForeignObject] = []

        async def look(part: ReleaseObject) -> None:
            there = await self._there(part)
            if there is None:
                return
            if part.manifest.hook:
                ours = self.is_own_hook(part, there)
            else:
                ours = self._uids.get(part.key) == there["metadata"]["uid"]
            if not ours:
                foreign.append(ForeignObject(part, there))
            elif not part.manifest.hook:
                await self._has_a_say(part.resource, there)

        affected = [part for part in parts if part.manifest.name and (not part.manifest.hook or part.manifest.replaced)]
        await gather_limited((look(part) for part in affected), limit=_AT_ONCE)
        if foreign:
            await self.wait_for(sorted(foreign, key=lambda found: str(found.part.ref)))

    async def _there(self, part: ReleaseObject) -> Object | None:
        try:
            return await self.member.client.get(part.resource, part.manifest.name, namespace=part.namespace or None)
        except NotFoundError:
            return None

    def is_own_hook(self, part: ReleaseObject, there: Object) -> bool:
        """Whether an existing object that would be replaced is a hook of this release."""
        if self._hooks is None:
            # Helm replaces any hook of that name, for example one of an earlier attempt.
            return HELM_HOOK_ANNOTATION in (there["metadata"].get("annotations") or {})
        return is_own_hook(there, self._hooks.get(part.key))

    async def wait_for(self, foreign: Sequence[ForeignObject]) -> None:
        """Raise Again if the release has to wait for foreign objects. They are not deleted in any case."""
        await self.hold(foreign)

    async def hold(self, foreign: Sequence[ForeignObject]) -> None:
        """Raise Again, until the first of these objects changes."""
        part, uid = foreign[0].part, foreign[0].there["metadata"]["uid"]
        names = ", ".join(str(item.part.ref) for item in foreign)
        why = f"cannot uninstall {self.release}: it names {names}, not created by this release; rename or remove it"
        changes = await self.member.watches.changes(part.resource, namespace=part.namespace, name=part.manifest.name)
        # It may have been deleted before the watch started.
        seen = await self.member.client.sighting(
            part.resource, part.manifest.name, uid=uid, namespace=part.namespace or None
        )
        if seen.absent:
            changes.close()
            raise Again(why, after=0)
        raise Again(why, until=changes)

    # Carrying out

    async def _mark(self, last: Revision) -> Revision:
        """Set the status that Helm sets, too: until the end, `helm list` shows it and `helm upgrade` fails. Fails if
        the release was changed since it was read."""
        try:
            return await release_secrets.set_status(
                self.member.client, last, HelmStatus.UNINSTALLING, why="removed by unwind"
            )
        except (ConflictError, NotFoundError):
            raise self._changed() from None

    async def _carry_out(
        self, objects: Sequence[ReleaseObject], hooks: Sequence[ReleaseHook], options: HelmOptions
    ) -> TransientError | None:
        """Run the hooks and delete the objects. Returns a failure that comes too late to try again: as with Helm, the
        release is gone then, and earlier hooks may need its objects."""
        runner = HookRunner(self.member, self.release, hooks, patience=options.timeout, is_own=self.is_own_hook)
        await runner.run(PRE_DELETE)
        deleted = await self._delete(objects, "Background" if options.cascade == "background" else "Foreground")
        if not any(POST_DELETE in (it.about.events or ()) for it in hooks):
            return None
        try:
            # The caller verifies absence. Only these hooks must wait for it.
            await self._until_absent(deleted, within=options.timeout)
            await runner.run(POST_DELETE)
        except TransientError as failure:
            _log.warning("post-delete hook failed", release=str(self.release), why=str(failure))
            return failure
        return None

    async def _delete(self, objects: Sequence[ReleaseObject], propagation: str) -> list[tuple[ReleaseObject, str]]:
        """Delete the objects that no deleter handles, kind by kind in Helm's order: it stores them in the order of
        their installation. Returns those that were there, with their uids."""
        deleted: list[tuple[ReleaseObject, str]] = []

        async def delete(part: ReleaseObject) -> None:
            uid = self._uids.get(part.key)
            for _ in range(_TRIES):
                there = await self._there(part)
                if (
                    not uid
                    or there is None
                    or there["metadata"]["uid"] != uid
                    or await self._has_a_say(part.resource, there)
                ):
                    return
                if await self._delete_as_read(part, there, propagation):
                    deleted.append((part, uid))
                    return
            raise Again(f"{part.ref} changes all the time; will retry", after=1)

        for _, together in groupby(reversed(objects), key=lambda part: part.manifest.kind):
            await gather_limited((delete(part) for part in together), limit=_AT_ONCE)
        return deleted

    async def _delete_as_read(self, part: ReleaseObject, there: Object, propagation: str) -> bool:
        """Delete an object; False if it has changed since it was read."""
        metadata = there["metadata"]
        try:
            await self.member.client.delete(
                part.resource,
                part.manifest.name,
                uid=metadata["uid"],
                version=metadata["resourceVersion"],
                namespace=part.namespace or None,
                propagation=propagation,
            )
        except NotFoundError:
            return True
        except ConflictError:
            return False
        except ApiError as error:
            raise TransientError(
                f"cannot uninstall {self.release}: {part.ref} was not deleted: {error}", remedy="will retry"
            ) from error
        return True

    async def _until_absent(self, deleted: Iterable[tuple[ReleaseObject, str]], *, within: float) -> None:
        """Raises TransientError if an object is still there after that time."""
        left = {str(part.ref): (part, uid) for part, uid in deleted}

        async def wait(name: str) -> None:
            part, uid = left[name]
            found = part.manifest.name, part.namespace
            absence = await self.member.watches.absence(part.resource, name=found[0], uid=uid, namespace=found[1])
            try:
                # It may have been absent before the watch started.
                seen = await self.member.client.sighting(part.resource, found[0], uid=uid, namespace=found[1] or None)
                if not seen.absent:
                    await absence.wait()
            finally:
                absence.close()
            del left[name]

        try:
            async with asyncio.timeout(within):
                await gather_limited((wait(name) for name in list(left)), limit=len(left) or 1)
        except TimeoutError:
            raise TransientError(
                f"cannot run the post-delete hooks of {self.release}: {', '.join(sorted(left))} still there after"
                f" {within:.0f}s",
                remedy="will retry; see `unwind why` for what holds them",
            ) from None

    async def _delete_secrets(self, revisions: Iterable[Revision]) -> None:
        """Delete the revisions as they were read, the last one at the end. Raises Again if there is another one: it may
        name other objects."""
        try:
            for revision in revisions:
                await release_secrets.delete(self.member.client, revision)
        except ConflictError:
            raise self._changed() from None
        if any("deletionTimestamp" not in it.secret["metadata"] for it in await self._history()):
            raise self._changed()


def _read(release: HelmRelease) -> tuple[list[ChartManifest], list[UninstallHook]]:
    """The objects that the uninstall deletes, and its hooks."""
    found = release_secrets.release_manifests(release)
    objects = [it for it in found if it.name and not it.hook and not it.kept]
    return objects, release_secrets.uninstall_hooks(release)
