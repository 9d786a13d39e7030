"""Helm releases on a member that no deployer drives, as handles: each is one step of the cluster's teardown.

A release has no object of its own. Helm stores each revision in a Secret on the member, new with every upgrade, so
nothing is written there: whether a release may be removed follows from who drives it and from the policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.policies import SourceKind
from unwind.companions import helm_release_drivers, helm_release_reader, helm_release_rules
from unwind.companions.companion import Handle, HandleEntry
from unwind.companions.helm_release_drivers import Driver, driven_handle
from unwind.companions.helm_release_reader import is_release, release_ref
from unwind.companions.helm_release_remover import ReleaseRemover
from unwind.companions.helm_release_rules import ReleaseName
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.companions.helm_release_rules import StoredRevision
    from unwind.helm.program import Helm
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget

_AT_ONCE = 8


class HelmCompanion:
    """Helm as a companion: releases that no deployer drives."""

    source = SourceKind.HELM

    def __init__(
        self,
        management: Client | None,
        helm: Helm | None,
        *,
        named: Callable[[ClusterTarget, ObjectRef], Awaitable[bool]],
    ) -> None:
        """`management`: None if the cluster is not known on a management cluster. `helm`: None if the program is not
        installed: then releases are held. `named`: whether a policy of the cluster names a release exactly, without
        wildcards."""
        self._management = management
        self.remover = ReleaseRemover(self, helm, named=named)

    def owns(self, ref: ObjectRef) -> bool:
        return is_release(ref)

    def is_marked(self, handle: ObjectRef, found: Metadata) -> bool:
        name = ReleaseName(handle.namespace, handle.name)
        return helm_release_rules.is_of_release(found, name) or helm_release_rules.is_release_secret(found, name)

    def why_kept(self, handle: ObjectRef, kind: str, found: Metadata) -> str:
        del handle, kind, found  # the manifests of the release say it
        return ""

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        del namespaces  # releases are on the member
        driven = await self.driven(target, member)
        stored = helm_release_rules.by_release(await helm_release_reader.stored_revisions(member.client))
        handles: list[Handle] = []

        async def one(name: ReleaseName, revisions: Sequence[StoredRevision]) -> None:
            driver = driven.get(name)
            if driver and driver.profile:
                return  # its step removes it
            if handle := await self._handle(target, member, name, revisions, driver):
                handles.append(handle)

        await gather_limited((one(*item) for item in stored.items()), limit=_AT_ONCE)
        return sorted(handles, key=lambda item: item.step)

    async def stranded(self, target: ClusterTarget, namespaces: Collection[str]) -> list[Handle]:
        del target, namespaces  # releases are on the member
        return []

    async def _handle(
        self,
        target: ClusterTarget,
        member: Member,
        name: ReleaseName,
        revisions: Sequence[StoredRevision],
        driver: Driver | None,
    ) -> Handle | None:
        ref = release_ref(name, cluster=target.ref.uid)
        loaded: LoadedRelease | None
        try:
            try:
                loaded = await helm_release_reader.load_revisions(
                    member, name, helm_release_rules.concerning(revisions)
                )
            except NotFoundError:
                loaded = await helm_release_reader.load(member, name)  # upgraded or uninstalled since the list
        except (ApiError, UnreachableError):
            raise
        except UnwindError as error:
            # A release that no policy selects must not hold the cluster. The removal of a selected one reports the
            # same error, and waits.
            entries = (HandleEntry(object=helm_release_reader.secret_ref(name, revisions[-1].secret)),)
            why = f"cannot be read: {error}"
            handle = Handle(ref=ref, source=self.source, entries=entries, unknown=why, warnings=(why,))
            return driven_handle(handle, driver) if driver else handle
        if loaded is None:
            return None
        driver = await self.driver_of(target, member, loaded, {name: driver} if driver else {})
        if driver and driver.profile:
            return None
        handle = await helm_release_reader.handle_of(member, loaded, ref)
        return driven_handle(handle, driver) if driver else handle

    async def driver_of(
        self, target: ClusterTarget, member: Member, loaded: LoadedRelease, driven: Mapping[ReleaseName, Driver]
    ) -> Driver | None:
        """Who drives a release. `driven`: those that an object of a deployer names."""
        if found := driven.get(loaded.name):
            return found
        if not loaded.driver:
            return None
        if loaded.profile or loaded.flux is None:
            return Driver(name=loaded.driver, profile=loaded.profile)
        handles = await helm_release_drivers.flux_drivers(
            self._management, target, member, loaded.flux, release=loaded.name.name
        )
        return Driver(name=loaded.driver, handles=handles, gone=not handles)

    async def driven(self, target: ClusterTarget, member: Member) -> dict[ReleaseName, Driver]:
        """The releases of a cluster that an object of a deployer names, with that object."""
        found = await helm_release_drivers.driven_on_member(member)
        if self._management:
            found |= await helm_release_drivers.driven_from_hub(self._management, target.ref)
        return found
