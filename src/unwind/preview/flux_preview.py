"""Previews the deletion of a Kustomization or HelmRelease of Flux: every object through nested inventories. Only reads.

Flux deletes what its inventory names, if the object carries Flux's labels and nothing tells Flux to keep it. Everything
else that a handle deployed would be left behind when the handle is gone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Entry, EntryState
from unwind.companions import flux_reader, flux_rules
from unwind.companions.flux import FluxCompanion
from unwind.companions.flux_rules import Place
from unwind.companions.flux_tree import FluxTree
from unwind.companions.handle_scopes import protected_by
from unwind.companions.step_source import SCOPE
from unwind.errors import UnwindError
from unwind.planning.blast_radius import blast_radius
from unwind.planning.progress import critical_path
from unwind.planning.waves import Draft, plan
from unwind.preview import leaks, member_preview, removal_forecast
from unwind.preview.object_preview import Foreseen
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unwind.companions.flux_tree import TreeHandle
    from unwind.kube.client import Client
    from unwind.kube.discovery import Named
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.preview.member_preview import CloudResources

KINDS = ((KUSTOMIZATIONS.group, KUSTOMIZATIONS.kind), (HELM_RELEASES.group, HELM_RELEASES.kind))


async def of_flux(client: Client, fleet: Members, here: Member, named: Named, *, home: str) -> Foreseen:
    """The preview of the deletion of a Kustomization or HelmRelease. Raises NotFoundError if it does not exist."""
    tree = FluxTree(FluxCompanion(client), fleet, here)
    async with tree.open:
        obj = await flux_reader.get(client, Place(named.resource.kind, named.namespace, named.name))
        await tree.read(obj)
        found = list(tree.handles.values())
        cloud = [
            await member_preview.cloud_resources_of(it.member, [entry.object for entry in _removed(it)])
            for it in found
            if it.member
        ]
        warnings, protected = [*_warnings(found), *tree.warnings], await _protected(found, home=home)
        try:
            refusals = [*await tree.refused(), *protected]
        except UnwindError as error:
            # Not every user may list all handles of a namespace.
            refusals = [*(Told(it.ref, it.held) for it in found if it.held), *protected]
            warnings.append(
                f"cannot check whether other Kustomizations or HelmReleases depend on it: {error}; if some do, the"
                " deletion is refused: retry as a user who may list them"
            )
        return _foreseen(found, cloud, refusals, warnings)


def _removed(it: TreeHandle) -> list[Entry]:
    return [] if it.held else [entry for entry in it.there if not entry.kept]


async def _protected(found: list[TreeHandle], *, home: str) -> list[Told]:
    """The protected objects. A nested handle is also an object of what deployed it."""
    refusals, told = partial(removal_forecast.refusals, home=home), dict[ObjectRef, Told]()
    for it in found:
        if it.member and it.snapshot:
            some = await protected_by(refusals, it.obj.metadata, it.ref, it.snapshot, place=it.place, member=it.member)
            told |= {item.object: item for item in some}
    return list(told.values())


def _warnings(found: list[TreeHandle]) -> Iterator[str]:
    root = found[0]
    if above := flux_rules.parent_of(root.obj.metadata):
        ends = f"the deletion ends when {above} is suspended, or no longer contains it"
        yield f"{above} would create {root.ref} again: {ends}"
    for it in found:
        if it.obj.metadata.terminating:
            yield f"{it.ref} is already being deleted; see what it waits for with `unwind why`"


def _leaks(tree: list[TreeHandle]) -> list[Told]:
    found: list[Told] = []
    for it in tree:
        if it.failed:
            found.append(Told(it.ref, it.failed))
        elif it.held:
            found += [Told(entry.object, f"{it.ref} {it.held}") for entry in it.there]
        else:
            found += leaks.of_kept([*it.there, *it.claims])
            found += leaks.of_foreign(it.ref, it.snapshot.foreign if it.snapshot else ())
    removed = {entry.object.uid for it in tree for entry in _removed(it)}
    known = [entry.object for it in tree for entry in it.there]
    return sorted(leaks.distinct(found, removed=removed, known=known), key=lambda told: str(told.object))


def _foreseen(
    found: list[TreeHandle], cloud: list[CloudResources], refusals: list[Told], warnings: list[str]
) -> Foreseen:
    """The preview (pure)."""
    root = found[0].ref
    made = plan(
        Draft(
            name=it.step,
            object=it.ref,
            kind=SCOPE,
            declared=it.step,
            depends_on=tuple(sorted(it.needs)),
            effort=Effort.LEAVE if it.held else Effort.ENFORCE,
            objects=len(_removed(it)),
        )
        for it in found
    )
    itself = Entry(object=root, resource=flux_rules.resource_of(root).plural, state=EntryState.CONFIRMED.value)
    entries = [itself, *(entry for it in found for entry in _removed(it))]
    balancers = frozenset[str]().union(*(item.balancers for item in cloud))
    balancing = {(entry.object.namespace, entry.object.name) for entry in entries if entry.object.uid in balancers}
    return Foreseen(
        title=str(root),
        target=root,
        requested=True,
        plan=msgspec.structs.replace(made, warnings=tuple(warnings)),
        objects={it.step: tuple(entry.object for entry in _removed(it)) for it in found},
        radius=blast_radius(entries, custom_resources={}, load_balancers=balancing),
        volumes=tuple(volume for item in cloud for volume in item.volumes),
        refusals=tuple(refusals),
        leaks=tuple(_leaks(found)),
        warnings=tuple(warnings),
        critical_path=critical_path(made),
    )
