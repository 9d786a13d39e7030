"""Objects that another profile with a lower tier took over after the inventory was written: a removal keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import OWNER_LABEL, SVELTOS_OWNER_ANNOTATION, Reason
from unwind.deleters.builtin import annotated
from unwind.deleters.keep_link import keep_link
from unwind.deleters.outcomes import Kept

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unwind.deleters.registration import Registration
    from unwind.kube.client import Object


def keep_taken(owners: Collection[str]) -> Registration:
    """A deleter that keeps objects with the owner label of another owner than these.

    A takeover changes only the owner label: the former owner's entry stays until its next reconcile. The label is
    changed in one write, and the DELETE carries the resourceVersion that was read, so there is no race.
    """

    def taken(obj: Object) -> Kept | None:
        by = taken_over_by(obj["metadata"].get("labels") or {}, annotated(obj), owners)
        return Kept(Reason.NOT_OURS, f"taken over by {by}; it is left in place", by="unwind") if by else None

    return keep_link("keep-taken", taken, about="Keep objects that another profile has taken over.")


def taken_over_by(labels: Mapping[str, str], annotations: Mapping[str, str], owners: Collection[str]) -> str:
    """The other owner of an object with these labels and annotations; empty if there is none (pure)."""
    owner = labels.get(OWNER_LABEL, "")
    if not owner or owner in owners:
        return ""
    kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
    return f"{kind} {name}".strip() or owner
