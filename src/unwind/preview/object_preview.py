"""Previews the deletion of one object: the order, the blast radius, and expected refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeletePolicy, VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SECRETS
from unwind.api.unwind import Effort, Plan, Step
from unwind.deleters import builtin
from unwind.inventory.inventories import Item
from unwind.planning.blast_radius import Radius, blast_radius
from unwind.planning.progress import critical_path
from unwind.preview import dependents, member_preview, removal_forecast
from unwind.preview.cost_preview import Cost
from unwind.preview.member_preview import BoundVolume
from unwind.removal import deletion_scope
from unwind.removal.deletion_scope import Told, entry_of, is_a, ref_to
from unwind.removal.object_order import Facts, Stage, order, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.kube.discovery import Named
    from unwind.members.member import Member
    from unwind.preview.member_preview import CloudResources
    from unwind.removal.deletion_scope import DeletionScope

STAGES = {
    Stage.CUSTOM_RESOURCES: "custom objects",
    Stage.CLOUD: "load balancers",
    Stage.CALLERS: "webhooks",
    Stage.WORKLOADS: "workloads",
    Stage.CLAIMS: "volume claims",
    Stage.REST: "the rest",
    Stage.DEFINITIONS: "definitions",
    Stage.NAMESPACES: "namespaces",
}
"""The step names in the preview of a requested deletion."""


class Foreseen(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The preview of a deletion."""

    title: str
    target: ObjectRef
    requested: bool
    """Whether the deletion needs a requested Teardown. If not, it is enough to delete the target: its controllers
    remove the rest."""
    plan: Plan
    objects: Mapping[str, tuple[ObjectRef, ...]] = {}
    """The objects that each step removes or leaves, by the step's name."""
    along: tuple[ObjectRef, ...] = ()
    """Dependents that are deleted with their owners."""
    radius: Radius
    volumes: tuple[BoundVolume, ...] = ()
    refusals: tuple[Told, ...] = ()
    """Expected refusals. If there are any, nothing is deleted."""
    blocked: tuple[Told, ...] = ()
    """What the deletion waits for, while it removes other objects: protected objects, paused profiles, a paused
    Cluster."""
    staying: tuple[Told, ...] = ()
    leaks: tuple[Told, ...] = ()
    """What a deployer would leave behind, and what could not be read."""
    warnings: tuple[str, ...] = ()
    critical_path: tuple[str, ...] = ()
    by_unwind: tuple[str, ...] = ()
    """The steps of deployers whose objects Unwind removes itself: the deployer would leave them."""
    costs: tuple[Cost, ...] = ()
    """What costs money outside a cluster that is deleted, and what becomes of it."""


async def of_object(
    member: Member, named: Named, *, home: str, volumes: VolumePolicy = VolumePolicy.RETAIN
) -> Foreseen:
    """The preview of the deletion of one object with its content and dependents. Only reads."""
    seen = await deletion_scope.scope_of(member, named.resource, named.name, namespace=named.namespace, volumes=volumes)
    refs = [ref_to(item) for item in seen.everything]
    cloud = await member_preview.cloud_resources_of(member, refs)
    refusals = await removal_forecast.refusals(member, seen, home=home)
    needed = await dependents.dependent_warnings(member.client, refs)
    return foreseen(seen, cloud, refusals=refusals, warnings=needed)


def foreseen(
    seen: DeletionScope, cloud: CloudResources, *, refusals: tuple[Told, ...] = (), warnings: tuple[str, ...] = ()
) -> Foreseen:
    """The preview of a deletion scope (pure)."""
    target = ref_to(seen.target)
    made, objects = planned(seen, cloud)
    warned = (*_of_itself(seen), *warnings)
    return Foreseen(
        title=str(target),
        target=target,
        requested=True,
        plan=msgspec.structs.replace(made, warnings=warned),
        objects=objects,
        along=tuple(map(ref_to, seen.along)),
        radius=_radius(seen, cloud),
        volumes=cloud.volumes,
        refusals=refusals,
        staying=(*_kept_target(seen), *seen.staying, *_retained(cloud)),
        warnings=warned,
        critical_path=critical_path(made),
    )


def planned(seen: DeletionScope, cloud: CloudResources) -> tuple[Plan, dict[str, tuple[ObjectRef, ...]]]:
    """The stages of the removal as steps, and the objects of each (pure)."""
    kept = bool(seen.keeping)
    going = [item for item in seen.going if not (kept and item is seen.target)]
    return staged([Item("", str(number), entry_of(item)) for number, item in enumerate(going)], cloud)


def staged(items: Sequence[Item], cloud: CloudResources) -> tuple[Plan, dict[str, tuple[ObjectRef, ...]]]:
    """The stages in which these objects are removed, as steps (pure)."""
    facts = Facts(balancers=cloud.balancers)
    steps: list[Step] = []
    objects: dict[str, tuple[ObjectRef, ...]] = {}
    for together in order(items, facts):
        name = STAGES[stage(together[0], facts)]
        refs = tuple(sorted((item.entry.object for item in together), key=lambda ref: (ref.kind, str(ref))))
        # An earlier step depends on the later ones: on an operator, on a namespace.
        if steps:
            steps[-1] = msgspec.structs.replace(steps[-1], needs=(name,))
        step = Step(name=name, object=refs[0], effort=Effort.ENFORCE.value, wave=len(steps) + 1, objects=len(refs))
        steps.append(step)
        objects[name] = refs
    return Plan(steps=tuple(steps), waves=len(steps), objects=len(items)), objects


def _radius(seen: DeletionScope, cloud: CloudResources) -> Radius:
    entries = [entry_of(item) for item in seen.deleted]
    there = [ref_to(item) for item in seen.everything] + [told.object for told in seen.staying]
    resources = {}
    if is_a(seen.target, CUSTOM_RESOURCE_DEFINITIONS):
        name = seen.target.metadata.name
        plural, _, group = name.partition(".")
        kinds = {
            item.resource.kind
            for item in seen.everything
            if (item.resource.plural, item.resource.group) == (plural, group)
        }
        resources[name] = sum(ref.group == group and ref.kind in kinds for ref in there)
    balancers = {(ref.namespace, ref.name) for ref in there if ref.uid in cloud.balancers}
    return blast_radius(entries, custom_resources=resources, load_balancers=balancers)


def _of_itself(seen: DeletionScope) -> tuple[str, ...]:
    """Warnings from the objects themselves."""
    target = seen.target
    warned = [
        f"{target} is controlled by {owner.kind} {owner.name}, which may create it again"
        for owner in target.metadata.owner_references
        if owner.controller
    ]
    if target.metadata.deletion_timestamp:
        warned.append(f"{target} is already being deleted; see what it waits for with `unwind why`")
    for item in seen.along:
        policy = builtin.effective_policy(item.metadata.annotations or {}).policy
        if isinstance(policy, Unknown) or policy is not DeletePolicy.MANAGE:
            warned.append(
                f"the delete policy of {item} keeps it, but Kubernetes deletes it with its owner; to keep it, remove"
                " its ownerReferences first"
            )
    releases = {
        name
        for item in seen.going
        if is_a(item, SECRETS) and (labels := item.metadata.labels or {}).get("owner") == "helm"
        if (name := labels.get("name", ""))
    }
    warned += [
        f"{name} is a Helm release, and its hooks are not run; to run them, use `helm uninstall`"
        for name in sorted(releases)
    ]
    warned += [f"{target} stays, because {told.why}" for told in _kept_target(seen)]
    return tuple(warned)


def _kept_target(seen: DeletionScope) -> list[Told]:
    """The target, if objects that stay in it keep it."""
    if not seen.keeping:
        return []
    what = "objects in it" if is_a(seen.target, NAMESPACES) else "custom resources of it"
    first = f"{seen.keeping[0].object}{_more(len(seen.keeping) - 1)}"
    return [Told(ref_to(seen.target), f"{what} stay: {first}")]


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _retained(cloud: CloudResources) -> list[Told]:
    return [
        Told(
            ObjectRef(version="v1", kind="PersistentVolume", name=volume.name),
            f"the reclaim policy of the volume of {volume.claim} is not Delete, so it stays",
        )
        for volume in cloud.volumes
        if not volume.goes
    ]
