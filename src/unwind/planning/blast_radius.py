"""The blast radius of a removal: how many objects it deletes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICES
from unwind.api.unwind import EntryState

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from unwind.api.resources import Resource
    from unwind.api.unwind import Entry


class KindCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of deleted objects of a kind."""

    group: str
    kind: str
    objects: int


class AffectedCRD(msgspec.Struct, frozen=True, kw_only=True):
    """A CRD that is deleted, and its custom resources, which are deleted with it."""

    name: str
    resources: int | None
    """The number of its custom resources; None if they were not counted, which does not mean that there are none."""
    along: int | None
    """The number of those that Unwind did not create. If there are any, the CRD is deleted only with take-along."""


class Radius(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a removal deletes."""

    objects: int
    """Deployed objects that are deleted."""
    staying: int
    """Deployed or adopted objects that stay."""
    along: int
    """Custom resources that Unwind did not create; a lower bound if `uncounted` names a CRD."""
    kinds: tuple[KindCount, ...]
    """The most frequent kinds first."""
    namespaces: tuple[str, ...]
    """Namespaces that are deleted."""
    within: tuple[str, ...]
    """Namespaces that stay but lose objects."""
    definitions: tuple[AffectedCRD, ...]
    load_balancers: tuple[ObjectRef, ...]
    """Services with a cloud load balancer."""

    @property
    def total(self) -> int:
        return self.objects + self.along

    @property
    def uncounted(self) -> tuple[str, ...]:
        """CRDs whose custom resources were not counted."""
        return tuple(definition.name for definition in self.definitions if definition.resources is None)


def blast_radius(
    entries: Iterable[Entry],
    *,
    custom_resources: Mapping[str, int],
    load_balancers: Container[tuple[str, str]] = (),
) -> Radius:
    """What removing these entries deletes.

    `custom_resources`: the number of custom resources on the member, by the name of the CRD. `load_balancers`:
    namespace and name of each Service of type LoadBalancer. Inventories contain neither.

    Objects that may exist count: those that are only intended, and those in an unknown state.
    """
    every = [entry for entry in entries if entry.state != EntryState.REMOVED]
    going = [entry for entry in every if not (entry.adopted or entry.kept or entry.left)]
    kinds = Counter((entry.object.group, entry.object.kind) for entry in going)
    ours = Counter(f"{entry.resource}.{entry.object.group}" for entry in going)
    definitions = tuple(
        _definition(name, custom_resources.get(name), ours[name]) for name in _names(going, CUSTOM_RESOURCE_DEFINITIONS)
    )
    namespaces = _names(going, NAMESPACES)
    return Radius(
        objects=len(going),
        staying=len(every) - len(going),
        along=sum(definition.along or 0 for definition in definitions),
        kinds=tuple(
            KindCount(group=group, kind=kind, objects=count)
            for (group, kind), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        ),
        namespaces=namespaces,
        within=tuple(sorted({entry.object.namespace for entry in going}.difference(namespaces, ("",)))),
        definitions=definitions,
        load_balancers=tuple(
            sorted(
                (
                    entry.object
                    for entry in going
                    if _is(entry.object, SERVICES) and (entry.object.namespace, entry.object.name) in load_balancers
                ),
                key=lambda ref: (ref.namespace, ref.name),
            )
        ),
    )


def _definition(name: str, there: int | None, ours: int) -> AffectedCRD:
    # The count may be older than the Inventory.
    return AffectedCRD(name=name, resources=there, along=None if there is None else max(0, there - ours))


def _names(entries: Iterable[Entry], resource: Resource) -> tuple[str, ...]:
    return tuple(sorted(entry.object.name for entry in entries if _is(entry.object, resource)))


def _is(ref: ObjectRef, resource: Resource) -> bool:
    return ref.kind == resource.kind and ref.group == resource.group
