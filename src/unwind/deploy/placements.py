"""Maps manifests to objects on a cluster: their resource, their namespace, and their order (pure)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import karmada, sveltos, unwind
from unwind.api.meta import ObjectRef, named_ref
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource
from unwind.api.unwind import Entry, EntryState
from unwind.deploy.manifest_sources import ManifestSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.deploy.manifest_sources import Manifest

# The manager acts on kinds of these groups, and trusts objects that it wrote itself; so does admission.
_ACTED_BY = frozenset(
    {
        unwind.GROUP,
        sveltos.CONFIG_GROUP,
        sveltos.LIB_GROUP,
        karmada.CLUSTERS.group,
        karmada.WORKS.group,
        "admissionregistration.k8s.io",
        "rbac.authorization.k8s.io",
    }
)
# The namespace that kubectl and Sveltos use for a namespaced object without a namespace.
DEFAULT_NAMESPACE = "default"


class PlacedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object to deploy on the cluster."""

    key: str
    """Its key in the inventory."""
    resource: Resource
    ref: ObjectRef
    body: dict[str, Any]
    source: ManifestSource
    place: str = ""
    """Its position in its source."""
    implied: bool = False
    """A namespace without a manifest that other objects need: created if it is absent, else not changed."""

    @property
    def confidential(self) -> bool:
        """Whether messages must not quote its content."""
        return "Secret" in (self.source.kind, self.ref.kind)

    def entry(self, state: EntryState, *, uid: str = "", adopted: bool = False) -> Entry:
        """Its inventory entry."""
        return Entry(
            object=msgspec.structs.replace(self.ref, uid=uid),
            resource=self.resource.plural,
            state=state.value,
            source=str(self.source),
            order=self.source.order,
            adopted=adopted,
        )


class Misplaced(msgspec.Struct, frozen=True):
    """A manifest that cannot be placed."""

    ref: ObjectRef
    source: ManifestSource
    why: str
    unserved: bool = False
    """Whether the cluster does not serve its kind. That may change."""


class Placement(msgspec.Struct, frozen=True):
    """All objects to deploy on one cluster."""

    objects: dict[str, PlacedObject]
    misplaced: list[Misplaced]


def inventory_key(group: str, kind: str, namespace: str, name: str) -> str:
    """The key of an object in the inventory: short and stable."""
    return hashlib.sha256("/".join((group, kind, namespace, name)).encode()).digest()[:12].hex()


def place(
    sources: Iterable[ManifestSource], served: Iterable[Resource], *, within: str = "", reserved: str = ""
) -> Placement:
    """The objects of sources for one cluster.

    `served`: the resources that the cluster serves; kinds that the sources define are added. `within`: the only allowed
    namespace, if set. `reserved`: Unwind's own namespace, if the cluster is the management cluster: no objects are
    deployed into it, nor objects of kinds that the manager acts on.
    """
    sources = list(sources)
    known = {(resource.group, resource.version, resource.kind): resource for resource in (*_defined(sources), *served)}
    objects: dict[str, PlacedObject] = {}
    misplaced: list[Misplaced] = []
    for source in sorted(sources, key=lambda source: source.order):
        for manifest in source.manifests:
            found = _placed(manifest, source, known, within, reserved)
            if isinstance(found, Misplaced):
                misplaced.append(found)
                continue
            rival = objects.get(found.key)
            if rival is None or rival.source.tier > source.tier:
                objects[found.key] = found
            elif rival.source.tier == source.tier:
                where = f"{rival.source}, {rival.place}, and in {source}, {found.place}"
                misplaced.append(Misplaced(found.ref, source, f"defined twice: in {where}"))
    twice = {(item.ref, item.source.tier) for item in misplaced if not item.unserved}
    # Neither of the two is deployed: it is unknown which one is meant.
    for key, one in list(objects.items()):
        if (one.ref, one.source.tier) in twice:
            del objects[key]
    return Placement(objects, misplaced)


def implied(placement: Placement, existing: Iterable[str]) -> dict[str, PlacedObject]:
    """The namespaces that the objects need and that neither exist nor have manifests. Sveltos creates them, too."""
    there = {*existing, *(item.ref.name for item in placement.objects.values() if item.resource == NAMESPACES)}
    made: dict[str, PlacedObject] = {}
    for item in sorted(placement.objects.values(), key=lambda placed: placed.source.order):
        name = item.ref.namespace
        if not name or name in there:
            continue
        there.add(name)
        body = {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": name}}
        found = _object(NAMESPACES, body, item.source, f"the namespace of {item.ref}")
        made[found.key] = msgspec.structs.replace(found, implied=True)
    return made


def stages(objects: Iterable[PlacedObject]) -> list[list[PlacedObject]]:
    """Groups of objects that are deployed concurrently, in order: namespaces, CRDs, then source by source."""
    groups: dict[tuple[int, int], list[PlacedObject]] = {}
    for obj in objects:
        if obj.resource == NAMESPACES:
            stage = (0, 0)
        elif is_definition(obj):
            stage = (1, 0)
        else:
            stage = (2, obj.source.order)
        groups.setdefault(stage, []).append(obj)
    return [groups[stage] for stage in sorted(groups)]


def is_definition(placed: PlacedObject) -> bool:
    """Whether it is a CRD: its custom resources must wait until it is established."""
    return (placed.ref.group, placed.ref.kind) == (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind)


def _placed(
    manifest: Manifest,
    source: ManifestSource,
    known: Mapping[tuple[str, str, str], Resource],
    within: str,
    reserved: str,
) -> PlacedObject | Misplaced:
    resource = known.get((manifest.group, manifest.version, manifest.kind))
    if resource is None:
        why = (
            f"the cluster does not serve {manifest.kind} of {manifest.body['apiVersion']} ({manifest.place}); install"
            " its CRD there"
        )
        return Misplaced(_ref(manifest), source, why, unserved=True)
    found = _object(resource, manifest.body, source, manifest.place)
    if within and found.ref.namespace != within:
        return Misplaced(
            found.ref,
            source,
            f"a Profile in namespace {within} may not deploy to another namespace of the management cluster",
        )
    if reserved and (found.ref.group in _ACTED_BY or reserved in (found.ref.namespace, _namespace(found.ref))):
        # The manager would write it with its own rights, and then trust it.
        return Misplaced(found.ref, source, "a profile may not deploy objects of Unwind to the management cluster")
    return found


def _namespace(ref: ObjectRef) -> str:
    return ref.name if (ref.group, ref.kind) == (NAMESPACES.group, NAMESPACES.kind) else ""


def _object(resource: Resource, body: dict[str, Any], source: ManifestSource, place: str) -> PlacedObject:
    metadata = dict(body["metadata"])
    # kubectl ignores a namespace on a cluster-scoped object, and the API server rejects it.
    named = metadata.pop("namespace", None)
    if resource.namespaced:
        metadata["namespace"] = named or DEFAULT_NAMESPACE
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    return PlacedObject(
        key=inventory_key(resource.group, resource.kind, namespace, name),
        resource=resource,
        ref=named_ref(resource, name, namespace=namespace),
        body=body | {"metadata": metadata},
        source=source,
        place=place,
    )


def _ref(manifest: Manifest) -> ObjectRef:
    return ObjectRef(
        group=manifest.group,
        version=manifest.version,
        kind=manifest.kind,
        namespace=manifest.namespace,
        name=manifest.name,
    )


class _Names(msgspec.Struct):
    plural: str = ""
    kind: str = ""


class _Version(msgspec.Struct):
    name: str = ""
    served: bool = False


class _Definition(msgspec.Struct):
    group: str = ""
    scope: str = ""
    names: _Names = msgspec.field(default_factory=_Names)
    versions: list[_Version] = []


def _defined(sources: Iterable[ManifestSource]) -> Iterable[Resource]:
    """The resources that CRDs among the manifests define."""
    wanted = (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind)
    for source in sources:
        for manifest in source.manifests:
            if (manifest.group, manifest.kind) != wanted:
                continue
            try:
                spec = msgspec.convert(manifest.body.get("spec"), _Definition)
            except msgspec.ValidationError:
                continue  # the API server reports the error
            for version in spec.versions:
                if version.served:
                    namespaced = spec.scope == "Namespaced"
                    yield Resource(spec.group, version.name, spec.names.plural, spec.names.kind, namespaced=namespaced)
