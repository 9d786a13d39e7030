"""What Flux deployed, in which order it goes, and what Flux would leave (pure).

The rules are those of kustomize-controller 1.9 and helm-controller 1.4 to 1.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unwind.api.fields import Unknown
from unwind.api.flux import (
    DISABLED,
    FLUX_FINALIZER,
    HELM_RELEASES,
    IGNORED,
    KUSTOMIZATIONS,
    PRUNE,
    RECONCILE,
    RESOURCE_SET_GROUP,
    RESOURCE_SET_LABELS,
    SSA,
    DeletionPolicy,
    HelmRelease,
    Kustomization,
)
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import FIELD_MANAGER, HELM_KEEP_ANNOTATION, HELM_RELEASE_ANNOTATION
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.companions.helm_release_rules import KEPT_CRD
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.flux import KubeConfig, ResourceInventory
    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

_SEPARATOR, _COLON, _FIELDS = "_", "__", 4
_KINDS: dict[tuple[str, str], Resource] = {(it.group, it.kind): it for it in (KUSTOMIZATIONS, HELM_RELEASES)}
_MARKS = {group: (f"{group}/name", f"{group}/namespace") for group, _ in _KINDS}
_KEEPING = {PRUNE: DISABLED, RECONCILE: DISABLED, SSA: IGNORED}
_CONTROLLERS = ("kustomize-controller", "helm-controller")
_KUSTOMIZE_CRDS = f".{KUSTOMIZATIONS.group}"
_KINDS_OF_FLUX = ("Deployment", CUSTOM_RESOURCE_DEFINITIONS.kind)

FluxObject = Kustomization | HelmRelease


class Place(NamedTuple):
    """A Kustomization or HelmRelease by name. The cluster follows from the context."""

    kind: str
    namespace: str
    name: str


# Objects


def read(handle: Object) -> FluxObject:
    """A Kustomization or HelmRelease, from its JSON."""
    if handle["kind"] == KUSTOMIZATIONS.kind:
        return msgspec.convert(handle, Kustomization)
    return msgspec.convert(handle, HelmRelease)


def kind_of(obj: FluxObject) -> Resource:
    return KUSTOMIZATIONS if isinstance(obj, Kustomization) else HELM_RELEASES


def reference(obj: FluxObject) -> ObjectRef:
    return ref_of(kind_of(obj), obj.metadata)


def place_of(obj: FluxObject) -> Place:
    return Place(kind_of(obj).kind, obj.metadata.namespace, obj.metadata.name)


def inventory_of(obj: FluxObject) -> tuple[ObjectRef, ...]:
    """The objects in its inventory. Raises UnwindError if an entry cannot be read."""
    return inventory_refs(obj.status.inventory)


def has_deployed(obj: FluxObject) -> bool:
    """Whether an object has deployed something, as far as its status says."""
    released = isinstance(obj, HelmRelease) and bool(obj.status.storage_namespace or obj.status.history)
    return released or bool(inventory_of(obj))


# Inventories


def parse_id(text: str, version: str) -> ObjectRef:
    """The object that an inventory entry names: `NAMESPACE_NAME_GROUP_KIND`. Raises UnwindError if it names none.

    Names of RBAC can contain `:`, which is written as `__`, and `_`. No other field can contain `_`.
    """
    parts = text.split(_SEPARATOR)
    if len(parts) == _FIELDS:  # nearly all of thousands of entries
        namespace, name, group, kind = parts
    else:
        namespace, _, rest = text.partition(_SEPARATOR)
        rest, _, kind = rest.rpartition(_SEPARATOR)
        name, _, group = rest.rpartition(_SEPARATOR)
        name = name.replace(_COLON, ":")
    if not (name and kind):
        raise UnwindError(
            f"cannot read the inventory entry {text!r} of Flux: it is not NAMESPACE_NAME_GROUP_KIND",
            remedy="check status.inventory of the Kustomization or HelmRelease",
        )
    return ObjectRef(group=group, version=version, kind=kind, namespace=namespace, name=name)


def id_of(ref: ObjectRef) -> str:
    """The inventory entry of an object."""
    return _SEPARATOR.join((ref.namespace, ref.name.replace(":", _COLON), ref.group, ref.kind))


def inventory_refs(inventory: ResourceInventory | None) -> tuple[ObjectRef, ...]:
    """The objects in an inventory, in its order. Raises UnwindError if an entry cannot be read."""
    # Without repetitions: by id, because a reference takes longer to hash than to make.
    found = {entry.id: entry.v for entry in (inventory.entries if inventory else ())}
    return tuple(parse_id(text, version) for text, version in found.items())


def is_handle(ref: ObjectRef) -> bool:
    """Whether an object is a Kustomization or a HelmRelease of Flux."""
    return (ref.group, ref.kind) in _KINDS


def resource_of(ref: ObjectRef) -> Resource:
    """The resource of a Kustomization or HelmRelease."""
    return _KINDS[ref.group, ref.kind]


# Which cluster


def kubeconfig_secret(config: KubeConfig | None) -> str:
    """The Secret with the kubeconfig of the cluster that an object deploys on; empty if it has none."""
    return config.secret_ref.name if config and config.secret_ref else ""


# Order


def dependencies(obj: FluxObject, kind: str) -> tuple[Place, ...]:
    """What an object depends on: Flux resolves names within the same kind."""
    return tuple(
        dict.fromkeys(Place(kind, item.namespace or obj.metadata.namespace, item.name) for item in obj.spec.depends_on)
    )


def children(parent: Place, entries: Iterable[ObjectRef]) -> tuple[Place, ...]:
    """The Kustomizations and HelmReleases in an inventory, without the parent itself.

    They go before their parent: the parent could create them again.
    """
    found = [Place(ref.kind, ref.namespace, ref.name) for ref in entries if ref.group in _MARKS and is_handle(ref)]
    return tuple(dict.fromkeys(place for place in found if place != parent))


def parent_of(metadata: ObjectMeta) -> ObjectRef | None:
    """What would create an object again if it were gone, without its uid; None if nothing of Flux would."""
    labels = metadata.labels
    for kind, group, prefix in (
        (KUSTOMIZATIONS.kind, KUSTOMIZATIONS.group, KUSTOMIZATIONS.group),
        ("ResourceSet", RESOURCE_SET_GROUP, RESOURCE_SET_LABELS),
    ):
        name, namespace = labels.get(f"{prefix}/name"), labels.get(f"{prefix}/namespace")
        if name and namespace and (kind, namespace, name) != ("Kustomization", metadata.namespace, metadata.name):
            return ObjectRef(group=group, version="v1", kind=kind, namespace=namespace, name=name)
    return None


def manages_flux(entries: Iterable[ObjectRef]) -> bool:
    """Whether an inventory contains Flux itself: its CRDs, or the Deployment of a controller."""
    return any(
        (ref.group == "apps" and ref.kind == "Deployment" and ref.name in _CONTROLLERS)
        or (ref.kind == CUSTOM_RESOURCE_DEFINITIONS.kind and ref.name.endswith(_KUSTOMIZE_CRDS))
        for ref in entries
        if ref.kind in _KINDS_OF_FLUX
    )


def is_part_of_flux(ref: ObjectRef, *, namespace: str) -> bool:
    """Whether an object is part of Flux itself. `namespace`: where Flux runs."""
    if ref.namespace == namespace or (ref.kind == "Namespace" and ref.name == namespace):
        return True
    if ref.kind == CUSTOM_RESOURCE_DEFINITIONS.kind:
        return ref.name.endswith((".toolkit.fluxcd.io", f".{RESOURCE_SET_GROUP}"))
    # ClusterRoles and bindings of the installation are named by its namespace.
    return ref.group == "rbac.authorization.k8s.io" and not ref.namespace and ref.name.endswith(f"-{namespace}")


# What Flux would leave


def why_left(obj: FluxObject) -> str:
    """Why Flux would leave what an object deployed if the object were deleted as it is; empty if it would not."""
    return _left(obj)[0]


def why_held(obj: FluxObject) -> str:
    """Why an object is not deleted as it is, and what to do about it; empty if it is."""
    why, remedy = _left(obj)
    if why:
        return f"{why}; {remedy}"
    if isinstance(obj, Kustomization) and isinstance(policy := _deletion_policy(obj), Unknown):
        return f"has an unknown spec.deletionPolicy: {policy}; set it to Delete"
    return ""


def _left(obj: FluxObject) -> tuple[str, str]:
    """Why Flux would leave what an object deployed, and what to do about it."""
    if obj.spec.suspend:
        return "is suspended, so Flux would leave what it deployed", "resume it, or delete its objects and then it"
    if isinstance(obj, HelmRelease):
        return "", ""
    policy = _deletion_policy(obj)
    if policy is DeletionPolicy.ORPHAN:
        return "has spec.deletionPolicy Orphan, so Flux would leave its objects", "set it to Delete"
    if policy is DeletionPolicy.MIRROR_PRUNE and not obj.spec.prune and obj.status.inventory:
        return "has spec.prune false, so Flux would leave its objects", "set spec.deletionPolicy to Delete"
    return "", ""


def _deletion_policy(obj: Kustomization) -> DeletionPolicy | Unknown:
    return DeletionPolicy.read(obj.spec.deletion_policy or DeletionPolicy.MIRROR_PRUNE.value)


def why_kept(handle: ObjectRef, *, labels: Mapping[str, str], annotations: Mapping[str, str], kind: str) -> str:
    """Why Flux does not delete an object that it deployed; empty if it does."""
    if handle.kind == HELM_RELEASES.kind:
        if HELM_KEEP_ANNOTATION in annotations:
            return f"{HELM_KEEP_ANNOTATION} is {annotations[HELM_KEEP_ANNOTATION]}: Helm does not delete it"
        if kind == CUSTOM_RESOURCE_DEFINITIONS.kind and HELM_RELEASE_ANNOTATION not in annotations:
            return KEPT_CRD
        return ""
    if _KEEPING.keys().isdisjoint(labels) and _KEEPING.keys().isdisjoint(annotations):
        return ""  # nearly all of thousands of objects
    for key, value in _KEEPING.items():
        if labels.get(key) == value or annotations.get(key) == value:
            return f"{key} is {value}: Flux does not delete it"
    return ""


def is_marked(handle: ObjectRef, labels: Mapping[str, str]) -> bool:
    """Whether an object carries Flux's labels for this Kustomization or HelmRelease."""
    name, namespace = _MARKS[handle.group]
    return labels.get(name) == handle.name and labels.get(namespace) == handle.namespace


def mark_selector(handles: Sequence[ObjectRef]) -> str:
    """The label selector for what Flux deployed for Kustomizations or HelmReleases, all of one kind."""
    name, namespace = _MARKS[handles[0].group]
    names, namespaces = sorted({it.name for it in handles}), sorted({it.namespace for it in handles})
    return f"{name} in ({','.join(names)}),{namespace} in ({','.join(namespaces)})"


# Deletion


def before_delete(obj: FluxObject) -> dict[str, object]:
    """The merge patch before an object is deleted.

    The annotation stops its parent from applying it. kustomize-controller does not reconcile for an annotation, but
    for each change of the spec, so the policy is changed only if Flux would wait: that occupies one of its workers.
    """
    patch: dict[str, object] = {}
    if obj.metadata.annotations.get(RECONCILE) != DISABLED:
        patch["metadata"] = {"annotations": {RECONCILE: DISABLED}}
    waits = DeletionPolicy.WAIT_FOR_TERMINATION.value
    if isinstance(obj, Kustomization) and obj.spec.deletion_policy == waits:
        patch["spec"] = {"deletionPolicy": DeletionPolicy.DELETE.value}
    return patch


def before_stay(handle: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that undoes `before_delete` on an object that stays. Only what Unwind itself has written."""
    ours = [
        entry.get("fieldsV1") or {}
        for entry in handle["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
    ]
    patch: dict[str, Any] = {}
    if any(f"f:{RECONCILE}" in fields.get("f:metadata", {}).get("f:annotations", {}) for fields in ours):
        patch["metadata"] = {"annotations": {RECONCILE: None}}
    if any("f:deletionPolicy" in fields.get("f:spec", {}) for fields in ours):
        patch["spec"] = {"deletionPolicy": DeletionPolicy.WAIT_FOR_TERMINATION.value}
    return patch


def working(obj: FluxObject, controller: str) -> str:
    """What Flux still has to do for an object that is being deleted; empty if it is done."""
    if FLUX_FINALIZER not in obj.metadata.finalizers:
        return ""
    ready = next((item for item in obj.status.conditions if item.type == "Ready"), None)
    failed = f": {ready.message}" if ready and ready.status == "False" and ready.message else ""
    return f"waiting until {controller} {'lets go of it' if why_left(obj) else 'removes what it deployed'}{failed}"
