"""The steps of Kustomizations and HelmReleases of Flux: their order, what holds them, and their warnings (pure)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import KUSTOMIZATIONS, HelmRelease, Kustomization
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.policies import SourceKind
from unwind.api.resources import Resource
from unwind.companions import flux_rules as rules
from unwind.companions.companion import Handle, HandleEntry, step_name
from unwind.companions.flux_order import dropped_warning, nested_order
from unwind.companions.flux_rules import Place
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.companions.flux_order import NestedOrder
    from unwind.companions.flux_rules import FluxObject

_NO_STEP = "management:"
"""Before the names of Kustomizations and HelmReleases that are no steps."""
FORGOTTEN = (
    "does not say in its status what it deployed, but objects on the cluster carry its labels: Flux would leave them;"
    " let Flux reconcile it, or delete them"
)
_ITSELF = "it deploys Flux itself, which goes with the cluster"


class FoundHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A Kustomization or HelmRelease that deploys on the cluster, and what it deployed."""

    resource: Resource
    obj: Kustomization | HelmRelease
    on_member: bool
    entries: tuple[HandleEntry, ...]
    forgotten: bool = False
    """Whether its status does not say what it deployed, and `entries` are found by its labels."""
    warnings: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        return rules.place_of(self.obj)

    @property
    def name(self) -> str:
        """Of its step."""
        return step_of(self.place)

    @property
    def refs(self) -> tuple[ObjectRef, ...]:
        return tuple(entry.object for entry in self.entries)


def handles_of(
    found: Sequence[FoundHandle], above: Sequence[FluxObject] = (), unread: Mapping[Place, str] | None = None
) -> list[Handle]:
    """The handles of a cluster with their order (pure). Raises if two of them have the same step.

    `above`: Kustomizations and HelmReleases on the management cluster that are no steps, but order those that are.
    `unread`: why others of these are not known.
    """
    for place, times in Counter(item.place for item in found).items():
        if times > 1:
            raise UnwindError(
                f"{step_of(place)} exists on the management cluster and on the cluster itself, and both deploy on it",
                remedy="rename one of them",
            )
    order = _order(found, {f"{_NO_STEP}{step_of(rules.place_of(obj))}": obj for obj in above})
    warnings: dict[str, list[str]] = {}
    for group in order.dropped:
        for name in group:
            warnings.setdefault(name, []).append(dropped_warning(name, group))
    for item in found:
        for place in ordering(item.obj) if unread and not item.on_member else ():
            if unread and (why := unread.get(place)):
                told = f"cannot read {step_of(place)}, which may order it: {why}"
                warnings.setdefault(item.name, []).append(told)
    return [_handle(item, order.needs[item.name], warnings.get(item.name, ())) for item in found]


def _order(found: Sequence[FoundHandle], above: Mapping[str, FluxObject]) -> NestedOrder:
    """The order of handles (pure). `above`: by their names in the order, which are no steps."""
    # Names in dependsOn and in inventories are those of one cluster.
    names = {(item.on_member, item.place): item.name for item in found}
    names |= {(False, rules.place_of(obj)): name for name, obj in above.items()}
    objects: dict[str, FluxObject] = {item.name: item.obj for item in found}
    objects |= above
    declared = {
        name: [names[there, it] for it in rules.dependencies(objects[name], place.kind) if (there, it) in names]
        for (there, place), name in names.items()
    }
    parents: dict[str, set[str]] = {name: set() for name in objects}
    containers = [(item.name, item.obj, item.refs, True) for item in found]
    containers += [
        (name, obj, rules.inventory_of(obj), False) for name, obj in above.items() if obj.spec.kube_config is None
    ]
    for parent, obj, refs, on_member in containers:
        for place in rules.children(rules.place_of(obj), refs):
            # Users who may write the status of the parent can put any handle into its inventory, but not mark it.
            child = names.get((on_member, place))
            if child and rules.is_marked(rules.reference(obj), objects[child].metadata.labels):
                parents[child].add(parent)
    # Flux on the member, deployed from the management cluster: it goes after all that it deployed.
    below = [item.name for item in found if not item.on_member and rules.manages_flux(item.refs)]
    return nested_order(
        declared, parents, also={item.name: below for item in found if item.on_member}, order_only=list(above)
    )


def ordering(obj: FluxObject) -> set[Place]:
    """What may order a handle: what it depends on, and what contains it, by its labels (pure)."""
    found = set(rules.dependencies(obj, rules.kind_of(obj).kind))
    parent = rules.parent_of(obj.metadata)
    if parent and parent.kind == KUSTOMIZATIONS.kind:
        found.add(Place(parent.kind, parent.namespace, parent.name))
    return found


def _handle(item: FoundHandle, needs: Iterable[str], warnings: Iterable[str]) -> Handle:
    itself = item.on_member and rules.manages_flux(item.refs) and not _deploys_others(item)
    return Handle(
        ref=ref_of(item.resource, item.obj.metadata),
        source=SourceKind.FLUX,
        entries=tuple(msgspec.structs.replace(entry, kept=_ITSELF) for entry in item.entries)
        if itself
        else item.entries,
        depends_on=tuple(sorted(needs)),
        terminating=item.obj.metadata.terminating,
        on_member=item.on_member,
        stays=_ITSELF if itself else "",
        left=rules.why_left(item.obj) if is_left(item.obj) else "",
        held=why_held(item.obj),
        unknown=f"it {FORGOTTEN}" if item.forgotten else "",
        warnings=(*item.warnings, *_warnings(item), *warnings),
    )


def _deploys_others(item: FoundHandle) -> bool:
    """Whether a handle deploys something besides Flux."""
    namespace = item.obj.metadata.namespace
    return any(not rules.is_handle(ref) and not rules.is_part_of_flux(ref, namespace=namespace) for ref in item.refs)


def _warnings(item: FoundHandle) -> Iterable[str]:
    if item.forgotten:
        yield f"it {FORGOTTEN}"
    if not is_left(item.obj) and (held := rules.why_held(item.obj)):
        yield f"it {held}"
    if not item.on_member and (parent := rules.parent_of(item.obj.metadata)):
        yield f"{parent} would create it again; it stays, being deleted, until the cluster is gone"


def step_of(place: Place) -> str:
    """The name of a step (pure)."""
    return step_name(ObjectRef(kind=place.kind, namespace=place.namespace, name=place.name))


def why_held(obj: FluxObject) -> str:
    """Why Flux would not remove everything if a handle were deleted as it is; empty if it would (pure)."""
    if why := rules.why_held(obj):
        return why
    # Flux on the management cluster can remove the one that it deployed on a member.
    if obj.spec.kube_config is None and rules.manages_flux(rules.inventory_of(obj)):
        return (
            "deploys Flux itself besides other objects, and Flux cannot remove itself; move the other objects to"
            " another Kustomization"
        )
    return ""


def is_left(obj: FluxObject) -> bool:
    """Whether Flux would leave what a handle deployed, and Unwind could remove it."""
    return bool(rules.why_left(obj)) and not (
        obj.spec.kube_config is None and rules.manages_flux(rules.inventory_of(obj))
    )


def unplaced_handle(resource: Resource, obj: FluxObject, why: str, remedy: str = "") -> Handle:
    ref = ref_of(resource, obj.metadata)
    return Handle(ref=ref, source=SourceKind.FLUX, unplaced=why, remedy=remedy)
