"""Helm releases as targets of `unwind plan` and `unwind delete`: release/NAME.

A release is deleted by the command itself, with the rights of its user: no rights of the manager are involved.
"""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unwind.api.meta import ObjectMeta
from unwind.api.unwind import Effort, Inventory, InventorySpec, MemberRef, Step
from unwind.cli import console
from unwind.cli.ledger import of_inventory
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.helm_release_rules import ReleaseName
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.registry import installed
from unwind.errors import UsageError
from unwind.helm.program import Helm
from unwind.inventory.in_memory import MemoryInventories
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.members import cluster_lookup
from unwind.members.members import Members
from unwind.members.targets import ClusterTarget
from unwind.preview.helm_release_preview import of_release
from unwind.teardown.step_removers import RemovalDeps, StepContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.meta import ObjectRef
    from unwind.cli.ledger import LedgerRow
    from unwind.members.member import Member
    from unwind.preview.object_preview import Foreseen
    from unwind.teardown.step_removers import StepRemoval

OnCluster = Annotated[
    str | None,
    Parameter(
        name="--cluster",
        help="Only for release/NAME: the cluster of the release, NAME or NAMESPACE/NAME of its cluster object here.",
    ),
]
_KINDS = ("release", "releases", "release.helm.sh", "releases.helm.sh")


def release_name(target: str) -> str:
    """The name of the release that a target means; empty if it is no release."""
    kind, _, name = target.strip().partition("/")
    return name if kind.lower() in _KINDS else ""


def check_cluster(target: str, cluster: str | None) -> None:
    """Raise UsageError if --cluster does not apply to this target."""
    if cluster is not None and not release_name(target):
        raise UsageError(f"--cluster does not apply to {target}", remedy="it is for release/NAME")


class ReleasePlace:
    """A release, and the cluster that it is on, with the rights of a user."""

    def __init__(self, client: Client, members: Members, target: ClusterTarget | None, name: ReleaseName) -> None:
        """`client`: of the current context. `target`: the member that the release is on, if it is on one."""
        program = shutil.which("helm")
        self.name = name
        self.has_helm = bool(program)
        self._client = client
        self._members = members
        self._target = target
        # A deployer on the management cluster is known only if the cluster is known there.
        hub = client if target else None
        self._companion = HelmCompanion(hub, Helm(Path(program)) if program else None, named=_is_named)

    async def foresee(self, volumes: VolumePolicy) -> Foreseen:
        """What the deletion would remove."""
        async with self._member() as member:
            found = await self._companion.driven(self._target or _cluster_of(member), member)
        return await of_release(
            self._members,
            self._companion,
            self.name,
            target=self._target,
            driven=found[self.name].name if self.name in found else "",
            volumes=volumes,
        )

    async def delete(self, ref: ObjectRef, volumes: VolumePolicy, *, quiet: bool) -> tuple[LedgerRow, ...]:
        """Uninstall the release, and return when every object is verified absent. Returns what is left behind."""
        async with self._member() as member:
            chunk = Inventory(
                metadata=ObjectMeta(name=f"{ref.uid}-0"),
                spec=InventorySpec(owner=ref, member=MemberRef(object=member.ref, system_uid=member.system_uid)),
            )
            target = self._target or _cluster_of(member)
        inventories = MemoryInventories(self._client, chunk)
        progress = _Waits(quiet=quiet)
        removal = self._companion.remover.begin(
            StepContext(
                step=Step(name=str(ref), object=ref, effort=Effort.ENFORCE.value, wave=1),
                target=target,
                means=RemovalDeps(
                    members=self._members, inventories=inventories, deleters=BUILTIN, plugins=tuple(installed())
                ),
                teardown="",
                chunks=(chunk,),
                take_along=False,
                volumes=lambda: volumes,
                going=frozenset,
                changed=progress.changed,
            )
        )
        progress.removal = removal
        await removal.run()
        return tuple(row for made in inventories.chunks for row in of_inventory(made))

    @asynccontextmanager
    async def _member(self) -> AsyncIterator[Member]:
        async with self._members.member(self._target) if self._target else self._members.management() as member:
            yield member


@asynccontextmanager
async def release_place(
    target: str,
    *,
    namespace: str | None,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    user_agent: str,
) -> AsyncIterator[ReleasePlace]:
    """The release that a target means, with a connection to its cluster."""
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent=user_agent) as client, Members(client) as members:
        found = await cluster_lookup.find_cluster(client, Discovery(client), cluster) if cluster else None
        # The namespace of the context is one of the management cluster.
        where = namespace or ("default" if found else connection.namespace)
        yield ReleasePlace(client, members, found, ReleaseName(where, release_name(target)))


async def _is_named(target: ClusterTarget, release: ObjectRef) -> bool:
    del target, release
    return True  # by the user


def _cluster_of(member: Member) -> ClusterTarget:
    """The cluster of the current context, which no object represents."""
    return ClusterTarget(ref=member.ref, secret="", ready=True)


class _Waits:
    """Prints what a removal waits for."""

    def __init__(self, *, quiet: bool) -> None:
        self.removal: StepRemoval | None = None
        self._quiet = quiet
        self._told: set[str] = set()

    def changed(self) -> None:
        for what in dict(self.removal.waits).values() if self.removal and not self._quiet else ():
            if what.told not in self._told:
                self._told.add(what.told)
                console.announce(what.told)
