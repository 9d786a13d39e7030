"""Previews the uninstall of a Helm release: every object, what Helm keeps and why, and what nothing would remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.annotation_values import VolumePolicy
from unwind.api.unwind import EntryState
from unwind.companions import helm_release_reader, helm_release_rules, snapshots
from unwind.companions.helm_release_reader import release_ref
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item
from unwind.planning.blast_radius import blast_radius
from unwind.planning.progress import critical_path
from unwind.preview import leaks
from unwind.preview.member_preview import preview_member
from unwind.preview.object_preview import Foreseen, staged
from unwind.preview.removal_forecast import ForecastFate, PlannedStep
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.companions.companion import Companion, Handle
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.companions.helm_release_rules import ReleaseName
    from unwind.companions.snapshots import Snapshot
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.preview.member_preview import MemberPreview


async def of_release(
    members: Members,
    companion: Companion,
    name: ReleaseName,
    *,
    target: ClusterTarget | None,
    driven: str = "",
    volumes: VolumePolicy = VolumePolicy.RETAIN,
) -> Foreseen:
    """The preview of the uninstall of a release. Only reads.

    `target`: the cluster of the release; None for the cluster that `members` was opened with. `driven`: the object of a
    deployer that names the release. Raises if there is no such release, or it cannot be read.
    """
    async with members.member(target) if target else members.management() as member:
        loaded = await helm_release_reader.load(member, name)
        if loaded is None:
            raise UnwindError(
                f"cannot plan deletion of release {name}: not found", remedy="check its name and --namespace"
            )
        ref = release_ref(name, cluster=target.ref.uid if target else member.system_uid)
        handle = await helm_release_reader.handle_of(member, loaded, ref)
        snapshot = await snapshots.take(snapshots.MemberObjects(member), companion, handle)
    entries = tuple(entry for entry in snapshot.entries.values() if entry.state == EntryState.CONFIRMED)
    seen = await preview_member(members, target, [PlannedStep(owner=ref.uid, entries=entries, volumes=volumes)])
    return foreseen(handle, loaded, snapshot, seen, driven=driven or loaded.driver)


def foreseen(
    handle: Handle, loaded: LoadedRelease, snapshot: Snapshot, seen: MemberPreview, *, driven: str
) -> Foreseen:
    """The preview of the uninstall of a release (pure)."""
    forecast = seen.forecast.steps.get(handle.ref.uid, ())
    going = [item.entry for item in forecast if item.fate is ForecastFate.GOES]
    # They store the release, and go with it.
    shown = [entry for entry in going if not helm_release_rules.stores_release(entry.object)]
    staying = [item for item in forecast if item.fate is ForecastFate.STAYS]
    items = [Item("", str(number), entry) for number, entry in enumerate(shown)]
    made, objects = staged(items, seen.cloud)
    warnings = [
        *_hooks(loaded),
        *([f"Helm may still be working on it: it is {loaded.release.info.status}"] if loaded.release.pending else []),
        *([f"other workloads of the cluster may need it: {loaded.cluster_role}"] if loaded.cluster_role else []),
        *seen.forecast.warnings,
    ]
    balancers = {(ref.namespace, ref.name) for ref in (e.object for e in shown) if ref.uid in seen.cloud.balancers}
    return Foreseen(
        title=f"release {loaded.name}",
        target=handle.ref,
        requested=True,
        plan=made,
        objects=objects,
        radius=blast_radius(shown, custom_resources=seen.resources, load_balancers=balancers),
        volumes=seen.cloud.volumes,
        refusals=(
            *(
                (Told(handle.ref, f"{driven} drives it and would install it again; delete that instead"),)
                if driven
                else ()
            ),
            *(Told(item.object, item.why) for item in seen.protected),
        ),
        staying=tuple(Told(item.entry.object, item.why) for item in staying if not item.entry.kept),
        leaks=(
            *leaks.of_kept(item.entry for item in staying),
            *leaks.of_foreign(handle.ref, snapshot.foreign),
            *((Told(handle.ref, seen.unseen),) if seen.unseen else ()),
        ),
        warnings=tuple(warnings),
        critical_path=critical_path(made),
    )


def _hooks(loaded: LoadedRelease) -> Sequence[str]:
    names = sorted(f"{it.kind} {it.name}" for it in loaded.hooks if it.on_delete)
    return [f"hooks run: {', '.join(names)}"] if names else []
