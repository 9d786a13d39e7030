"""What a deletion would leave behind although no policy chose that: exit code 4 of `unwind plan`. One rule for all
targets (docs/delete.md, what would be left behind; pure).

What a deployer does not delete is left behind, also if its user told it to: the author of a chart cannot know which
deletion comes. What a TeardownPolicy, a profile or an annotation of Unwind leaves is chosen, and no leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.companions import snapshots
from unwind.preview.cost_preview import NOT_DRAINED
from unwind.removal import volume_claims
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry
    from unwind.preview.cost_preview import Cost


def of_kept(entries: Iterable[Entry]) -> list[Told]:
    """The objects that a deployer keeps, and the claims of its StatefulSets, which are in no inventory."""
    return [Told(entry.object, why_kept(entry)) for entry in entries if entry.kept and entry.object.uid]


def why_kept(entry: Entry) -> str:
    """Why an object of a deployer stays."""
    return volume_claims.why_retained(entry) if volume_claims.is_retained(entry) else snapshots.why_kept(entry)


def of_foreign(handle: ObjectRef, foreign: Iterable[ObjectRef]) -> list[Told]:
    """The objects that a handle lists, and that do not carry the marks of its deployer. Their uids are not known."""
    why = f"{handle} lists it, but it does not have its labels, and is not deleted with it"
    return [Told(ref, why) for ref in foreign]


def of_costs(costs: Iterable[Cost]) -> list[Told]:
    """What costs money outside of the cluster, and that nothing decides about."""
    return [Told(cost.object, f"{cost.what}: {NOT_DRAINED}") for cost in costs if cost.left and not cost.left_by]


def distinct(found: Iterable[Told], *, removed: Collection[str], known: Iterable[ObjectRef]) -> tuple[Told, ...]:
    """Each object once, with the first reason, and only if no other step has it. `removed`: what is removed, by uid.
    `known`: the objects of all steps."""
    names = {_name(ref) for ref in known}
    first: dict[tuple[str, ...], Told] = {}
    for told in found:
        uid = told.object.uid
        if (uid not in removed) if uid else (_name(told.object) not in names):
            first.setdefault((uid, *_name(told.object)), told)
    return tuple(first.values())


def _name(ref: ObjectRef) -> tuple[str, str, str, str]:
    return ref.group, ref.kind, ref.namespace, ref.name
