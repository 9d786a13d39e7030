"""How much goes: the blast radius of a removal."""

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


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects of a kind go."""

    group: str
    kind: str
    objects: int


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A CRD that goes, and the custom resources that cannot stay without it."""

    name: str
    resources: int | None
    """How many there are of it; None if they were not counted, which does not mean that there are none."""
    along: int | None
    """How many of them nobody here put there. While there are any, it goes only if its profile takes them along."""


class Radius(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a removal takes away."""

    objects: int
    """What was put there and goes."""
    staying: int
    """What was put there, or taken over, and stays."""
    along: int
    """Custom resources that nobody here put there; at least so many, where `uncounted` names a CRD."""
    kinds: tuple[Kind, ...]
    """The most frequent first."""
    namespaces: tuple[str, ...]
    """Namespaces that go themselves."""
    within: tuple[str, ...]
    """Namespaces that stay, and lose something."""
    definitions: tuple[Definition, ...]
    load_balancers: tuple[ObjectRef, ...]
    """Services that hold a load balancer at a cloud."""

    @property
    def total(self) -> int:
        return self.objects + self.along

    @property
    def uncounted(self) -> tuple[str, ...]:
        """CRDs of which nobody knows how much they take along."""
        return tuple(one.name for one in self.definitions if one.resources is None)


def blast_radius(
    entries: Iterable[Entry],
    *,
    custom_resources: Mapping[str, int],
    load_balancers: Container[tuple[str, str]] = (),
) -> Radius:
    """What goes if these entries are removed.

    `custom_resources` says for each CRD, by its name, how many custom resources there are on the member;
    `load_balancers` holds namespace and name of each Service of that type. An inventory shows neither.

    An object that may be there counts: one that is only intended, or whose state is not known.
    """
    every = [entry for entry in entries if entry.state != EntryState.REMOVED]
    going = [entry for entry in every if not (entry.adopted or entry.kept or entry.ledger)]
    kinds = Counter((entry.object.group, entry.object.kind) for entry in going)
    ours = Counter(f"{entry.resource}.{entry.object.group}" for entry in going)
    definitions = tuple(
        _definition(name, custom_resources.get(name), ours[name]) for name in _names(going, CUSTOM_RESOURCE_DEFINITIONS)
    )
    namespaces = _names(going, NAMESPACES)
    return Radius(
        objects=len(going),
        staying=len(every) - len(going),
        along=sum(one.along or 0 for one in definitions),
        kinds=tuple(
            Kind(group=group, kind=kind, objects=count)
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


def _definition(name: str, there: int | None, ours: int) -> Definition:
    # What was counted may be older than the inventory.
    return Definition(name=name, resources=there, along=None if there is None else max(0, there - ours))


def _names(entries: Iterable[Entry], resource: Resource) -> tuple[str, ...]:
    return tuple(sorted(entry.object.name for entry in entries if _is(entry.object, resource)))


def _is(ref: ObjectRef, resource: Resource) -> bool:
    return ref.kind == resource.kind and ref.group == resource.group
