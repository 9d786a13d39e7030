"""What the label on an object does not protect it against (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.policies import DeleteProtection
from unwind.protecting.kinds import Rest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.protecting.kinds import Kind


def not_against(kind: Kind, word: DeleteProtection, *, owners: Iterable[str] = ()) -> Iterator[str]:
    """One sentence each. `owners`: what the object belongs to, as a person calls it."""
    yield (
        f"whoever may change it can take the label {DELETE_PROTECTION_LABEL} away, and delete it then: who may is"
        " decided by RBAC (update, patch)"
    )
    if word is DeleteProtection.CASCADING:
        yield f"its deletion as soon as {_nothing_left(kind)}"
    for owner in owners:
        yield (
            f"the deletion of {owner}, which owns it: in the foreground it hangs on this object until the label is"
            " gone, in the background it goes and leaves this object behind"
        )
    if kind.namespaced:
        yield (
            "the deletion of its namespace while no manager runs: all else in there goes, and the namespace hangs on"
            " this object. While one runs, it is refused"
        )
    if not kind.built_in:
        yield (
            f"the deletion of the CRD {kind.plural}.{kind.group} while no manager runs: the API server asks nobody, and"
            " this object is gone. While one runs, it is refused"
        )
    match kind.rest:
        case Rest.CONTENTS:
            yield "the deletion of single objects in it: what must stay needs the label itself"
        case Rest.RESOURCES:
            yield "the deletion of single resources of it: what must stay needs the label itself"
        case None:
            yield f"changes: {_changes(kind)}"


def _nothing_left(kind: Kind) -> str:
    match kind.rest:
        case Rest.CONTENTS:
            return "no active Pod and no bound claim is in it"
        case Rest.RESOURCES:
            return "there are no resources of it"
    return f"it has no {kind.count.what}" if kind.count else "somebody asks for it"


def _changes(kind: Kind) -> str:
    if kind.count and kind.count.what == "replicas":
        return "it can be scaled to zero, and its Pods can be deleted one by one"
    return "whoever may write it can make it useless"
