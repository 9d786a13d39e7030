"""What the label on an object does not protect it against (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.policies import DeleteProtection
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES
from unwind.protecting.kinds import Controlled, Rest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from unwind.protecting.kinds import Kind

_ADMISSION = VALIDATING_ADMISSION_POLICIES.group


def not_against(kind: Kind, word: DeleteProtection, *, owners: Iterable[str] = ()) -> Iterator[str]:
    """One sentence each. `owners`: what the object belongs to, as a person calls it."""
    yield (
        f"whoever may change it can take the label {DELETE_PROTECTION_LABEL} away, and delete it then: who may is"
        " decided by RBAC (update, patch)"
    )
    if word is DeleteProtection.CASCADING:
        yield f"its deletion as soon as {_nothing_left(kind)}"
    for owner in owners:
        if kind.controlled is Controlled.FREE_FOR_CONTROLLERS:
            yield f"the deletion of {owner}, which owns it: Kubernetes' controllers may delete it, also in a rollout"
            continue
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
    if (kind.group, kind.kind) == ("", "Pod"):
        yield "evictions: `kubectl drain` and the kubelet remove a Pod without a DELETE"
    match kind.rest:
        case Rest.CONTENTS:
            yield "the deletion of single objects in it: what must stay needs the label itself"
        case Rest.RESOURCES:
            yield "the deletion of single resources of it: what must stay needs the label itself"
        case None:
            yield f"changes: {_changes(kind)}"


def unprotectable(kind: Kind, *, controller: str = "") -> tuple[str, str] | None:
    """Why the label would not protect an object, and what to do instead; None if it would. `controller`: its
    controller, as a person calls it."""
    if kind.group == _ADMISSION:
        return (
            f"the API server asks no admission policy about a {kind.kind}",
            "restrict with RBAC who may delete it",
        )
    if kind.exempt:
        return (
            f"a {kind.kind} cannot be protected: controllers write and delete it all the time",
            "protect the object that it belongs to",
        )
    if controller and kind.controlled is Controlled.FREE:
        return f"{controller} controls it, and must be able to delete it", f"protect {controller} instead"
    return None


def disk_warning(volume: Mapping[str, Any]) -> str:
    """What a person must know who protects a PersistentVolume; empty if there is nothing."""
    spec, status = volume.get("spec") or {}, volume.get("status") or {}
    claim = spec.get("claimRef") or {}
    if spec.get("persistentVolumeReclaimPolicy") != "Delete" or status.get("phase") != "Bound":
        return ""
    where, name = claim.get("namespace", ""), claim.get("name", "")
    return (
        f"deleting PersistentVolumeClaim {where}/{name} deletes the disk behind this PersistentVolume, whose reclaim"
        f" policy is Delete: protect the claim, too (`unwind protect pvc/{name} -n {where}`), or set"
        " persistentVolumeReclaimPolicy: Retain"
    )


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
