"""CustomResourceDefinitions of every kind that Unwind installs."""

from __future__ import annotations

import inspect
import types
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from unwind.api import karmada, names, policies, sveltos, unwind
from unwind.api.fields import rule
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping


# Generates the structural OpenAPI schemas of CRDs from the API types.

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
_SIMPLE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}


def schema_of(model: type[msgspec.Struct], *, keep_unknown: bool, complete: bool = False) -> Schema:
    """The schema of one struct.

    With `keep_unknown`, the API server keeps unknown fields at every level: users of other systems set them, and a
    pruned field is lost. `complete`: with the fields that the CRD omits (`doc`, brief), for the documentation.
    """
    hints = get_type_hints(model, include_extras=True)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for field in msgspec.structs.fields(model):
        kind, meta = _unwrapped(hints[field.name])
        schema = _schema(kind, keep_unknown=keep_unknown, complete=complete)
        if meta:
            if meta.extra and meta.extra["brief"] and not complete:
                schema = _brief(schema)
            schema = {"description": meta.description, **schema, **(meta.extra_json_schema or {})}
            if meta.extra and meta.extra["required"]:
                required.append(field.encode_name)
        properties[field.encode_name] = schema
    whole: Schema = {"type": "object", "properties": properties}
    if required:
        whole["required"] = required
    if keep_unknown:
        whole[PRESERVE] = True
    return whole


def _brief(schema: Schema) -> Schema:
    """The schema without the fields that are not required: the API server stores them, and does not check them.

    It walks through the schema several times for each write: to prune, to set defaults, to validate. Without the
    optional fields, a write of an Inventory takes it little more than half of the time (`bench/members.py`).
    """
    brief = dict(schema)
    if isinstance(more := schema.get("additionalProperties"), dict):
        brief["additionalProperties"] = _brief(more)
    if "properties" in schema:
        required = schema.get("required", ())
        brief["properties"] = {name: _brief(one) for name, one in schema["properties"].items() if name in required}
        brief[PRESERVE] = True
    return brief


def root_schema(
    model: type[msgspec.Struct], *, keep_unknown: bool, rules: list[Schema], complete: bool = False
) -> Schema:
    """The schema of an object. The API server has its own schema for apiVersion, kind and metadata. `complete`: as for
    `schema_of`."""
    whole = schema_of(model, keep_unknown=keep_unknown, complete=complete)
    whole.pop(PRESERVE, None)
    whole["description"] = inspect.cleandoc(model.__doc__ or "")
    own: Schema = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    whole["properties"] = {**whole["properties"], **own}
    if rules:
        # The API server refuses rules that might be expensive, and it does not know the maximum length of a name.
        own["metadata"]["properties"] = {"name": {"type": "string", "maxLength": 253}}
        whole["x-kubernetes-validations"] = rules
    return whole


def _schema(kind: Any, *, keep_unknown: bool, complete: bool) -> Schema:
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return schema_of(kind, keep_unknown=keep_unknown, complete=complete)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], keep_unknown=keep_unknown, complete=complete)}
    if origin is dict:
        if arguments[1] is Any:
            return {"type": "object", PRESERVE: True}
        return {
            "type": "object",
            "additionalProperties": _schema(arguments[1], keep_unknown=keep_unknown, complete=complete),
        }
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member not in (type(None), msgspec.UnsetType)]
        if set(members) == {int, str}:
            return {"x-kubernetes-int-or-string": True}
        if len(members) == 1:
            return _schema(members[0], keep_unknown=keep_unknown, complete=complete)
    raise TypeError(f"cannot generate a schema for {kind}")


def _unwrapped(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, msgspec.Meta)), None)


CATEGORY = "unwind"
"""The category: `kubectl get unwind` lists objects of all of these kinds."""


class PrinterColumn(msgspec.Struct, frozen=True):
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


class KindDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A kind, and the parts of its CRD that are not in the schema."""

    resource: Resource
    model: type[msgspec.Struct]
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = (CATEGORY,)
    columns: tuple[PrinterColumn, ...] = (AGE,)
    rules: tuple[dict[str, Any], ...] = ()
    status: bool = True
    foreign: bool = True
    """A kind of another system. Its users' YAML must work unchanged, so unknown fields are not pruned."""

    @property
    def name(self) -> str:
        return f"{self.resource.plural}.{self.resource.group}"

    def schema(self, *, complete: bool = False) -> Schema:
        """The schema of the CRD. `complete`: as for `schema_of`."""
        return root_schema(self.model, keep_unknown=self.foreign, rules=list(self.rules), complete=complete)

    def custom_resource_definition(self) -> dict[str, Any]:
        resource = self.resource
        schema = self.schema()
        version: dict[str, Any] = {
            "name": resource.version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            "additionalPrinterColumns": [_printed(column) for column in self.columns],
        }
        if self.status:
            version["subresources"] = {"status": {}}
        names_: dict[str, Any] = {
            "kind": resource.kind,
            "listKind": f"{resource.kind}List",
            "plural": resource.plural,
            "singular": self.singular,
            "categories": list(self.categories),
        }
        if self.short_names:
            names_["shortNames"] = list(self.short_names)
        return {
            "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
            "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
            "metadata": {"name": self.name, "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND}},
            "spec": {
                "group": resource.group,
                "names": names_,
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "versions": [version],
            },
        }


def _printed(column: PrinterColumn) -> dict[str, Any]:
    printed = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**printed, "priority": 1} if column.wide else printed


# A profile that depends on itself would wait forever. Only a new or changed value is refused: an object that already
# has it must still be able to lose its finalizers.
_NOT_ITSELF = rule(
    "!has(self.spec) || !has(self.spec.dependsOn) || !(self.metadata.name in self.spec.dependsOn) || "
    "(oldSelf.hasValue() && has(oldSelf.value().spec) && has(oldSelf.value().spec.dependsOn) && "
    "self.spec.dependsOn == oldSelf.value().spec.dependsOn)",
    "dependsOn names the profile itself",
    fieldPath=".spec.dependsOn",
    optionalOldSelf=True,
)
_PROFILE_COLUMNS = (
    PrinterColumn("On-Cluster-Deletion", ".spec.clusterDeletionBehavior"),
    PrinterColumn("On-Stop-Matching", ".spec.stopMatchingBehavior", wide=True),
    PrinterColumn("Sync", ".spec.syncMode"),
    PrinterColumn("Needs", ".spec.dependsOn"),
    PrinterColumn("Tier", ".spec.tier", "integer", wide=True),
    AGE,
)


def _feature(feature: str) -> str:
    return f'.status.featureSummaries[?(@.featureID=="{feature}")].status'


DEFINITIONS: tuple[KindDefinition, ...] = (
    KindDefinition(
        resource=sveltos.CLUSTER_PROFILES,
        model=sveltos.ClusterProfile,
        singular="clusterprofile",
        columns=_PROFILE_COLUMNS,
        rules=(_NOT_ITSELF,),
    ),
    KindDefinition(
        resource=sveltos.PROFILES,
        model=sveltos.Profile,
        singular="profile",
        columns=_PROFILE_COLUMNS,
        rules=(_NOT_ITSELF,),
    ),
    KindDefinition(
        resource=sveltos.CLUSTER_SUMMARIES,
        model=sveltos.ClusterSummary,
        singular="clustersummary",
        columns=(
            PrinterColumn("Cluster", ".spec.clusterName"),
            PrinterColumn("Resources", _feature("Resources")),
            PrinterColumn("Helm", _feature("Helm")),
            PrinterColumn("Kustomize", _feature("Kustomize"), wide=True),
            PrinterColumn("On-Cluster-Deletion", ".spec.clusterProfileSpec.clusterDeletionBehavior", wide=True),
            PrinterColumn("Waits-For", ".status.dependencies", wide=True),
            AGE,
        ),
    ),
    KindDefinition(
        resource=sveltos.CLUSTER_CONFIGURATIONS,
        model=sveltos.ClusterConfiguration,
        singular="clusterconfiguration",
    ),
    KindDefinition(
        resource=sveltos.SVELTOS_CLUSTERS,
        model=sveltos.SveltosCluster,
        singular="sveltoscluster",
        columns=(
            PrinterColumn("Ready", ".status.ready", "boolean"),
            PrinterColumn("Version", ".status.version"),
            PrinterColumn("Connection", ".status.connectionStatus", wide=True),
            AGE,
        ),
    ),
    KindDefinition(
        resource=karmada.CLUSTERS,
        model=karmada.Cluster,
        singular="cluster",
        columns=(
            PrinterColumn("Version", ".status.kubernetesVersion"),
            PrinterColumn("Mode", ".spec.syncMode"),
            PrinterColumn("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            PrinterColumn("On-Unjoin", ".spec.removeStrategy"),
            PrinterColumn("Unjoining", '.status.conditions[?(@.type=="Unjoining")].status', wide=True),
            AGE,
        ),
    ),
    KindDefinition(
        resource=karmada.WORKS,
        model=karmada.Work,
        singular="work",
        short_names=("wk",),
        categories=("karmada-io", CATEGORY),
        columns=(
            PrinterColumn("Workload-Kind", ".spec.workload.manifests[*].kind"),
            PrinterColumn("Applied", '.status.conditions[?(@.type=="Applied")].status'),
            AGE,
        ),
    ),
    KindDefinition(
        resource=unwind.TEARDOWNS,
        model=unwind.Teardown,
        singular="teardown",
        short_names=("td",),
        foreign=False,
        columns=(
            PrinterColumn("Target", ".spec.title"),
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("Wave", ".status.wave"),
            PrinterColumn("Removed", ".status.removed"),
            PrinterColumn("Blocked-By", ".status.blockedBy"),
            PrinterColumn("Left", ".status.left", "integer", wide=True),
            PrinterColumn("Deadline", ".spec.deadline", wide=True),
            PrinterColumn("Cause", ".spec.cause", wide=True),
            AGE,
        ),
    ),
    KindDefinition(
        resource=unwind.INVENTORIES,
        model=unwind.Inventory,
        singular="inventory",
        short_names=("inv",),
        foreign=False,
        status=False,
        columns=(
            PrinterColumn("Owner-Kind", ".spec.owner.kind"),
            PrinterColumn("Owner", ".spec.owner.name"),
            PrinterColumn("Member", ".spec.member.object.name"),
            PrinterColumn("Chunk", ".spec.chunk", "integer"),
            PrinterColumn("Sealed-For", ".spec.sealedFor"),
            AGE,
        ),
    ),
    KindDefinition(
        resource=policies.TEARDOWN_POLICIES,
        model=policies.TeardownPolicy,
        singular="teardownpolicy",
        short_names=("tdp",),
        foreign=False,
        columns=(
            PrinterColumn("Accepted", '.status.conditions[?(@.type=="Accepted")].status'),
            PrinterColumn("Clusters", ".status.selected", "integer"),
            PrinterColumn("Steps", ".status.steps", "integer"),
            PrinterColumn("Deadline", ".spec.deadline"),
            PrinterColumn("On-Deadline", ".spec.onDeadline", wide=True),
            PrinterColumn("Conflict", '.status.conditions[?(@.type=="Conflict")].status'),
            AGE,
        ),
    ),
)


def api_groups() -> list[str]:
    """The API groups of the kinds that Unwind installs."""
    return sorted({definition.resource.group for definition in DEFINITIONS})
