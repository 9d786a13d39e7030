"""Reads the objects that a drain deletes from a member, with what a person wants to know about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.resources import PERSISTENT_VOLUMES, Resource
from unwind.api.unwind import Entry, EntryState
from unwind.companions.snapshots import served_resource
from unwind.deploy.placements import inventory_key
from unwind.drain import rules
from unwind.why import facts

if TYPE_CHECKING:
    from unwind.drain.rules import DrainDecision, KindName
    from unwind.kube.client import Object
    from unwind.members.member import Member

FINALIZER = "drain.finalizer"
"""The memo key of an entry with the finalizer that proves the cleanup: once the object is gone, it is unknown."""
NONE = "-"
# Marks of deployers, by the label or annotation with the name of the object that deployed it.
_MARKS = {
    "kustomize.toolkit.fluxcd.io/name": "Flux Kustomization",
    "helm.toolkit.fluxcd.io/name": "Flux HelmRelease",
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "meta.helm.sh/release-name": "Helm release",
}
# By kind: the list in the spec, and the field of its items with a DNS name.
_HOSTS = {
    "Ingress": {"rules": "host"},
    "Gateway": {"listeners": "hostname"},
    "DNSEndpoint": {"endpoints": "dnsName"},
}
_HOSTNAMES = ("external-dns.alpha.kubernetes.io/hostname",)


class DrainedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that stands for something outside the cluster."""

    ref: ObjectRef
    resource: Resource
    labels: Mapping[str, str] = {}
    owners: frozenset[str] = frozenset()
    """The uids of its owners."""
    terminating: bool = False
    finalizer: str = ""
    """The finalizer of the controller that cleans up; empty if there is none."""
    finalizer_writers: tuple[str, ...] = ()
    """The field managers that set it."""
    made_by: str = ""
    addresses: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()
    """Its DNS names."""
    size: str = ""
    storage_class: str = ""
    volume: str = ""
    reclaims: bool = True
    """Whether its volume is deleted with it. Other volumes are not drained."""

    @property
    def key(self) -> str:
        """Its key in an Inventory: another object of the same name has the same."""
        ref = self.ref
        return inventory_key(ref.group, ref.kind, ref.namespace, ref.name)

    @property
    def about(self) -> str:
        """What it stands for and who created it, for the ledger."""
        found = " ".join(part for part in (*self.addresses, *self.hostnames, self.volume, self.size) if part)
        return f"{found}, made by {self.made_by}" if found else f"made by {self.made_by}"

    @property
    def entry(self) -> Entry:
        return Entry(
            object=self.ref,
            resource=self.resource.plural,
            state=EntryState.CONFIRMED.value,
            source=self.about,
            memo={FINALIZER: self.finalizer or NONE},
        )


async def read(member: Member, decision: DrainDecision, *, retained: bool = False) -> list[DrainedObject]:
    """All objects of a step of a drain. Raises if they cannot be read. `retained`: also claims whose volume stays."""
    found: list[DrainedObject] = []
    for kind in decision.kinds:
        resource = await served_resource(member, ObjectRef(group=kind.group, kind=kind.kind))
        if resource:
            found += await _of_kind(member, resource, kind)
    return [item for item in found if item.reclaims or retained]


async def _of_kind(member: Member, resource: Resource, kind: KindName) -> list[DrainedObject]:
    listed = await member.client.list(resource)
    if (kind.group, kind.kind) == ("", "Service"):
        listed = [item for item in listed if item["spec"].get("type") == "LoadBalancer"]
    if (kind.group, kind.kind) == ("", "PersistentVolumeClaim"):
        volumes = {item["metadata"]["name"]: item for item in await member.client.list(PERSISTENT_VOLUMES)}
        bound = [(item, volumes.get(item["spec"].get("volumeName", ""))) for item in listed]
        return [_claim(resource, item, volume) for item, volume in bound if volume]
    return [drained(resource, item) for item in listed]


def drained(resource: Resource, obj: Object) -> DrainedObject:
    """An object, as a drain sees it (pure)."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    ingress = (status.get("loadBalancer") or {}).get("ingress") or status.get("addresses") or ()
    hosts = [
        value.get(name)
        for field, name in _HOSTS.get(resource.kind, {}).items()
        for value in spec.get(field) or ()
        if isinstance(value, dict)
    ]
    for name in _HOSTNAMES:
        hosts += annotations.get(name, "").replace(" ", "").split(",")
    finalizer = rules.cleanup_finalizer(metadata.get("finalizers"))
    return DrainedObject(
        ref=ref_of(resource, msgspec.convert(metadata, ObjectMeta, strict=False)),
        resource=resource,
        labels=metadata.get("labels") or {},
        owners=frozenset(owner["uid"] for owner in metadata.get("ownerReferences") or ()),
        terminating="deletionTimestamp" in metadata,
        finalizer=finalizer,
        finalizer_writers=facts.writers(obj, finalizer) if finalizer else (),
        made_by=made_by(obj),
        addresses=tuple(
            str(address)
            for entry in ingress
            if (address := entry.get("ip") or entry.get("hostname") or entry.get("value"))
        ),
        hostnames=tuple(dict.fromkeys(str(host) for host in hosts if host)),
    )


def _claim(resource: Resource, claim: Object, volume: Object) -> DrainedObject:
    spec = volume["spec"]
    return msgspec.structs.replace(
        drained(resource, claim),
        # The PersistentVolume proves it.
        finalizer=PERSISTENT_VOLUMES.kind,
        size=(spec.get("capacity") or {}).get("storage", ""),
        storage_class=spec.get("storageClassName", ""),
        volume=volume["metadata"]["name"],
        reclaims=spec.get("persistentVolumeReclaimPolicy") == "Delete",
    )


def made_by(obj: Object) -> str:
    """Who created an object, as far as it shows (pure): its controller, a deployer, or a field manager."""
    metadata = obj["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{owner['kind']} {owner['name']}"
    marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    for mark, deployer in _MARKS.items():
        if mark in marks:
            return f"{deployer} {marks[mark]}"
    writers = [
        (field.get("time", ""), field["manager"])
        for field in metadata.get("managedFields") or ()
        if field.get("manager") and not field.get("subresource")
    ]
    return min(writers)[1] if writers else "unknown"
