"""What a deployer leaves when its handle is deleted: Unwind removes it itself, with its own chain of deleters.

Only objects of the snapshot, by their uids, and only while they carry the mark of the deployer for the handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.companions import helm_release_reader, helm_release_rules
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.impersonation import forbidden_hooks
from unwind.deleters.keep_link import keep_link
from unwind.deleters.outcomes import Again, Kept, PermanentError
from unwind.deploy.helm_uninstall import HelmReleases, Uninstallation
from unwind.kube.decoding import Metadata
from unwind.removal.helm_release_removal import Releases

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from unwind.api.unwind import Entry
    from unwind.companions.companion import HandleCompanion
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.companions.impersonation import Account
    from unwind.deleters.registration import Registration
    from unwind.deploy.helm_hooks import ReleaseHook
    from unwind.helm.program import Helm
    from unwind.helm.release_secrets import ChartManifest, Revision
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import HasASay

    OtherDriver = Callable[[LoadedRelease], Awaitable[str]]
    """Who drives a release besides the deployer that leaves it; empty if there is none."""

# Nothing reports when a person uninstalls a release, or corrects a policy.
LOOK_AGAIN = 30.0


class OwnRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """How Unwind itself removes what the deployer of a handle leaves."""

    releases: Releases | None = None
    """Uninstalls the Helm release that the objects are part of; None if they are part of none."""


class LeftRelease(HelmReleases):
    """Uninstalls the release of one handle. Unwind has written no mark on it."""

    def __init__(
        self,
        helm: Helm,
        release: ObjectRef,
        *,
        storage: str,
        other: OtherDriver,
        hooks_disabled: bool,
        account: Account | None,
    ) -> None:
        """`storage`: the namespace of its Secrets."""
        super().__init__(helm)
        self._release = release
        self._other = other
        self._storage = storage
        self._hooks_disabled = hooks_disabled
        self._account = account

    def release_of(self, entry: Entry) -> ObjectRef | None:
        return self._release if entry.object.uid else None

    def storage(self, release: ObjectRef) -> str:
        del release
        return self._storage

    def _uninstallation(
        self, member: Member, release: ObjectRef, owner: str, ours: Sequence[Entry], has_a_say: HasASay
    ) -> Uninstallation:
        del owner  # of a profile: its releases are never uninstalled here
        uninstallation = _LeftUninstallation(
            helm=self._helm,
            member=member,
            release=release,
            owner="",
            objects=ours,
            hooks=None,
            has_a_say=has_a_say,
            storage=self._storage,
        )
        uninstallation.other = self._other
        uninstallation.hooks_disabled = self._hooks_disabled
        uninstallation.account = self._account
        return uninstallation


class _LeftUninstallation(Uninstallation):
    """The uninstall of a release that its deployer leaves."""

    other: OtherDriver
    hooks_disabled: bool
    account: Account | None

    async def owns(self, last: Revision) -> bool:
        # It may have been taken over since its removal began.
        loaded = await helm_release_reader.load(
            self.member, ReleaseName(self.release.namespace, self.release.name), storage=self.storage
        )
        if loaded is None or not loaded.last.is_same(last):
            raise self._changed()
        await _check_driver(loaded, self.other)
        return True

    async def check_hooks(self, last: Revision, hooks: Sequence[ReleaseHook]) -> None:
        # It may have been upgraded since its removal began.
        await _check_hooks(
            self.member,
            ReleaseName(self.release.namespace, self.release.name),
            [it.part.manifest for it in hooks],
            storage=self.storage,
            disabled=self.hooks_disabled,
            account=self.account,
        )


async def _check_driver(loaded: LoadedRelease, other: OtherDriver) -> None:
    """Raise Again if another deployer drives the release now: whether it may go is decided there."""
    if driver := await other(loaded):
        why = f"cannot uninstall release {loaded.name}: {driver} drives it now; remove it there"
        raise Again(why, after=LOOK_AGAIN, code=Reason.HELD)


async def _check_hooks(
    member: Member,
    name: ReleaseName,
    hooks: Sequence[ChartManifest],
    *,
    storage: str,
    disabled: bool,
    account: Account | None,
) -> None:
    """Raise Again if a release must not be uninstalled with these hooks. `storage`: the namespace of its Secrets.
    `account`: the one that would run its hooks."""
    if account and not disabled and (denied := await forbidden_hooks(member, account, hooks, name.namespace)):
        why = (
            f"cannot uninstall release {name}: {account}, with which Flux runs its hooks, may not create and delete"
            f" {', '.join(denied)}; grant it these rights, or disable the hooks (spec.uninstall.disableHooks)"
        )
        raise Again(why, after=LOOK_AGAIN, code=Reason.HELD)
    reaching = helm_release_rules.reaching_hooks(hooks, namespace=name.namespace, storage=storage)
    if why := helm_release_rules.why_not_uninstalled(name, reaching, disabled=disabled):
        raise Again(why, after=LOOK_AGAIN, code=Reason.HELD)


async def left_release(
    member: Member,
    name: ReleaseName,
    helm: Helm | None,
    *,
    storage: str = "",
    other: OtherDriver,
    hooks_disabled: bool,
    account: Account | None = None,
) -> OwnRemoval:
    """How a release is removed that its deployer leaves. `helm`: None if the program is not installed. `storage`: the
    namespace of its Secrets, if it is not its own. `other`: who drives it besides that deployer. `account`: the one
    with which its deployer would run its hooks; None if that is not limited.

    Raises Again, or PermanentError, if it must not be uninstalled.
    """
    storage = storage or name.namespace
    loaded = await helm_release_reader.load(member, name, storage=storage)
    if loaded is None:
        return OwnRemoval()  # it is uninstalled already
    await _check_driver(loaded, other)
    await _check_hooks(member, name, loaded.hooks, storage=storage, disabled=hooks_disabled, account=account)
    if helm is None:
        raise PermanentError(
            f"cannot uninstall release {name}: the helm program is not installed",
            reason=Reason.HELD,
            remedy="install Helm 3",
        )
    ref = ObjectRef(
        group=helm_release_reader.GROUP,
        version="v1",
        kind=helm_release_reader.KIND,
        namespace=name.namespace,
        name=name.name,
    )
    releases = LeftRelease(helm, ref, storage=storage, other=other, hooks_disabled=hooks_disabled, account=account)
    return OwnRemoval(releases=releases)


def keep_unmarked(companion: HandleCompanion, handle: ObjectRef, refs: Iterable[ObjectRef]) -> Registration:
    """A deleter that keeps those of a handle's objects that do not carry the deployer's mark any more, or that it would
    not delete itself: both may have changed since they were recorded."""
    kinds = {ref.uid: ref.kind for ref in refs if ref.uid}

    def kept(obj: Object) -> Kept | None:
        kind = kinds.get(obj["metadata"]["uid"])
        if kind is None:
            return None
        metadata = msgspec.convert(obj["metadata"], Metadata)
        if not companion.is_marked(handle, metadata):
            message = f"taken over: it no longer carries the mark of {handle}; {helm_release_rules.STAYS}"
            return Kept(Reason.NOT_OURS, message, by="unwind")
        why = companion.why_kept(handle, kind, metadata)
        return Kept(Reason.KEPT_BY_POLICY, why, by=companion.controller) if why else None

    return keep_link(
        "keep-unmarked",
        kept,
        when=lambda obj: kept(obj) is not None,
        about="Keep objects that no longer carry the mark of their deployer, or that it keeps.",
    )
