"""Stub CRDs, ClusterClass and Clusters of Cluster API, with members as infrastructure (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.capi import CLUSTERS, MACHINE_POOLS, MACHINE_SETS, MACHINES
from unwind.api.names import CLUSTER_NAME_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.kube.client import Object

CLUSTER_CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")

_INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"
_CONTROL_PLANE = "controlplane.cluster.x-k8s.io"
STUB_CLUSTERS = Resource(_INFRASTRUCTURE, "v1beta2", "stubclusters", "StubCluster")
STUB_CLUSTER_TEMPLATES = Resource(_INFRASTRUCTURE, "v1beta2", "stubclustertemplates", "StubClusterTemplate")
STUB_MACHINES = Resource(_INFRASTRUCTURE, "v1beta2", "stubmachines", "StubMachine")
STUB_MACHINE_TEMPLATES = Resource(_INFRASTRUCTURE, "v1beta2", "stubmachinetemplates", "StubMachineTemplate")
STUB_MACHINE_POOLS = Resource(_INFRASTRUCTURE, "v1beta2", "stubmachinepools", "StubMachinePool")
STUB_CONTROL_PLANES = Resource(_CONTROL_PLANE, "v1beta2", "stubcontrolplanes", "StubControlPlane")
STUB_CONTROL_PLANE_TEMPLATES = Resource(
    _CONTROL_PLANE, "v1beta2", "stubcontrolplanetemplates", "StubControlPlaneTemplate"
)
# Not a stub: its controller is that of `tools.KUBEADM_CONTROL_PLANE`.
KUBEADM_CONTROL_PLANES = Resource(_CONTROL_PLANE, "v1beta2", "kubeadmcontrolplanes", "KubeadmControlPlane")

CLASS = "stub"
# Clusters in any namespace can refer to a class in this namespace.
CLASS_NAMESPACE = "default"

CONTRACT_LABEL = "cluster.x-k8s.io/v1beta2"
"""Cluster API reads from this label of a CRD which version of it implements the contract."""

_TEXT: Object = {"type": "string"}
_FLAG: Object = {"type": "boolean"}
_NUMBER: Object = {"type": "integer", "format": "int32"}


def custom_resource_definitions() -> list[Object]:
    """The four CRDs that a ClusterClass needs, and those of the infrastructure of Machines and MachinePools. Nothing
    acts on the latter: they are created and deleted by Cluster API."""
    endpoint = _object({"host": _TEXT, "port": _NUMBER})
    infrastructure = {"member": _TEXT, "controlPlaneEndpoint": endpoint}
    # The topology controller sets version and replicas, and fails if a field is not in the schema.
    control_plane = {"member": _TEXT, "version": _TEXT, "replicas": _NUMBER}
    return [
        _definition(
            STUB_CLUSTERS,
            {
                "spec": _object(infrastructure, required=["member"]),
                "status": _object({"initialization": _object({"provisioned": _FLAG}), "conditions": _CONDITIONS}),
            },
        ),
        _definition(STUB_CLUSTER_TEMPLATES, {"spec": _template(infrastructure)}),
        _definition(
            STUB_CONTROL_PLANES,
            {
                "spec": _object(control_plane, required=["member"]),
                "status": _object(
                    {
                        "initialization": _object({"controlPlaneInitialized": _FLAG}),
                        "externalManagedControlPlane": _FLAG,
                        "versions": _list(_object({"version": _TEXT}, required=["version"]), key="version"),
                        "conditions": _CONDITIONS,
                    }
                ),
            },
        ),
        _definition(STUB_CONTROL_PLANE_TEMPLATES, {"spec": _template(control_plane)}),
        _definition(
            STUB_MACHINES,
            {
                "spec": _object({"providerID": _TEXT}),
                "status": _object({"initialization": _object({"provisioned": _FLAG}), "conditions": _CONDITIONS}),
            },
        ),
        _definition(STUB_MACHINE_TEMPLATES, {"spec": _template({"providerID": _TEXT})}),
        _definition(
            STUB_MACHINE_POOLS,
            {
                "spec": _object({"providerIDList": {"type": "array", "items": _TEXT}}),
                "status": _object(
                    {
                        "initialization": _object({"provisioned": _FLAG}),
                        "replicas": _NUMBER,
                        "conditions": _CONDITIONS,
                    }
                ),
            },
        ),
    ]


def cluster_class() -> list[tuple[Resource, Object]]:
    """The templates, then the ClusterClass that refers to them; its variable selects the member of a Cluster."""
    templates = [STUB_CLUSTER_TEMPLATES, STUB_CONTROL_PLANE_TEMPLATES]
    infrastructure, control_plane = ({"templateRef": _class_reference(template)} for template in templates)
    spec = {
        "infrastructure": infrastructure,
        "controlPlane": control_plane,
        "variables": [
            {"name": "member", "required": True, "schema": {"openAPIV3Schema": {"type": "string", "minLength": 1}}}
        ],
        "patches": [{"name": "member", "definitions": [_member_patch(template) for template in templates]}],
    }
    return [
        *((template, _named(template, CLASS, CLASS_NAMESPACE, {"template": {"spec": {}}})) for template in templates),
        (CLUSTER_CLASSES, _named(CLUSTER_CLASSES, CLASS, CLASS_NAMESPACE, spec)),
    ]


def cluster_of_class(
    name: str, namespace: str, *, member: str, version: str, labels: Mapping[str, str]
) -> list[tuple[Resource, Object]]:
    """A Cluster of the ClusterClass."""
    topology = {
        "classRef": {"name": CLASS, "namespace": CLASS_NAMESPACE},
        "version": version,
        "variables": [{"name": "member", "value": member}],
    }
    return [(CLUSTERS, _named(CLUSTERS, name, namespace, {"topology": topology}, labels))]


def cluster_by_hand(
    name: str, namespace: str, *, member: str, version: str, labels: Mapping[str, str]
) -> list[tuple[Resource, Object]]:
    """A Cluster without ClusterClass, after its infrastructure and control plane objects.

    In this order, because Cluster API retries missing references only after 30 s.
    """
    return [
        (STUB_CLUSTERS, _named(STUB_CLUSTERS, name, namespace, {"member": member})),
        (STUB_CONTROL_PLANES, _named(STUB_CONTROL_PLANES, name, namespace, {"member": member, "version": version})),
        _cluster(name, namespace, STUB_CONTROL_PLANES, labels),
    ]


def kubeadm_cluster(
    name: str, namespace: str, *, member: str, version: str, labels: Mapping[str, str]
) -> list[tuple[Resource, Object]]:
    """A Cluster with a KubeadmControlPlane of one replica, after its infrastructure and control plane objects.

    One, because the next one would need a healthy etcd member on the first Machine.
    """
    infrastructure = {"infrastructureRef": _reference(STUB_MACHINE_TEMPLATES, name)}
    control_plane = {
        "replicas": 1,
        "version": version,
        "machineTemplate": {"spec": infrastructure},
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
    }
    return [
        (STUB_CLUSTERS, _named(STUB_CLUSTERS, name, namespace, {"member": member})),
        (STUB_MACHINE_TEMPLATES, _named(STUB_MACHINE_TEMPLATES, name, namespace, {"template": {"spec": {}}})),
        (KUBEADM_CONTROL_PLANES, _named(KUBEADM_CONTROL_PLANES, name, namespace, control_plane)),
        _cluster(name, namespace, KUBEADM_CONTROL_PLANES, labels),
    ]


def _cluster(name: str, namespace: str, control_planes: Resource, labels: Mapping[str, str]) -> tuple[Resource, Object]:
    references = {
        "infrastructureRef": _reference(STUB_CLUSTERS, name),
        "controlPlaneRef": _reference(control_planes, name),
    }
    return CLUSTERS, _named(CLUSTERS, name, namespace, references, labels)


def machine_pool(
    cluster: str, namespace: str, *, name: str = "pool", replicas: int, version: str
) -> list[tuple[Resource, Object]]:
    """A MachinePool of a Cluster, after its infrastructure."""
    named = f"{cluster}-{name}"
    template = _machine_spec(cluster, version, _reference(STUB_MACHINE_POOLS, named))
    spec = {"clusterName": cluster, "replicas": replicas, "template": {"spec": template}}
    labels = {CLUSTER_NAME_LABEL: cluster}
    return [
        (STUB_MACHINE_POOLS, _named(STUB_MACHINE_POOLS, named, namespace, {}, labels)),
        (MACHINE_POOLS, _named(MACHINE_POOLS, named, namespace, spec, labels)),
    ]


def workers(
    cluster: str, namespace: str, *, name: str = "workers", replicas: int, version: str
) -> list[tuple[Resource, Object]]:
    """A MachineSet of a Cluster, after the template of its infrastructure."""
    labels = {CLUSTER_NAME_LABEL: cluster, "set": name}
    template = _machine_spec(cluster, version, _reference(STUB_MACHINE_TEMPLATES, f"{cluster}-{name}"))
    spec = {
        "clusterName": cluster,
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template},
    }
    named = f"{cluster}-{name}"
    made = _named(MACHINE_SETS, named, namespace, spec, labels)
    # The control plane of the stubs does not report all that these checks need.
    made["metadata"]["annotations"] = {"machineset.cluster.x-k8s.io/skip-preflight-checks": "All"}
    return [
        (STUB_MACHINE_TEMPLATES, _named(STUB_MACHINE_TEMPLATES, named, namespace, {"template": {"spec": {}}})),
        (MACHINE_SETS, made),
    ]


def control_plane_machine(
    cluster: str, namespace: str, *, name: str, owner: str, version: str
) -> list[tuple[Resource, Object]]:
    """A Machine of a StubControlPlane, after its infrastructure. `owner`: the uid of the StubControlPlane."""
    named = f"{cluster}-{name}"
    spec = _machine_spec(cluster, version, _reference(STUB_MACHINES, named))
    labels = {CLUSTER_NAME_LABEL: cluster, "cluster.x-k8s.io/control-plane": ""}
    made = _named(MACHINES, named, namespace, spec, labels)
    reference = {"apiVersion": STUB_CONTROL_PLANES.api_version, "kind": STUB_CONTROL_PLANES.kind, "name": cluster}
    made["metadata"]["ownerReferences"] = [reference | {"uid": owner, "controller": True, "blockOwnerDeletion": True}]
    return [(STUB_MACHINES, _named(STUB_MACHINES, named, namespace, {}, labels)), (MACHINES, made)]


def _machine_spec(cluster: str, version: str, infrastructure: Object) -> Object:
    return {
        "clusterName": cluster,
        "version": version,
        "bootstrap": {"dataSecretName": "none"},
        "infrastructureRef": infrastructure,
    }


def _named(
    resource: Resource, name: str, namespace: str, spec: Object, labels: Mapping[str, str] | None = None
) -> Object:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": spec,
    }


def _reference(resource: Resource, name: str) -> Object:
    return {"apiGroup": resource.group, "kind": resource.kind, "name": name}


def _class_reference(resource: Resource) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "name": CLASS}


def _member_patch(template: Resource) -> Object:
    which = "infrastructureCluster" if template.group == _INFRASTRUCTURE else "controlPlane"
    return {
        "selector": {
            "apiVersion": template.api_version,
            "kind": template.kind,
            "matchResources": {which: True},
        },
        "jsonPatches": [{"op": "add", "path": "/spec/template/spec/member", "valueFrom": {"variable": "member"}}],
    }


def _definition(resource: Resource, properties: Object) -> Object:
    return {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "labels": {CONTRACT_LABEL: resource.version},
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind},
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}} if "status" in properties else {},
                    "schema": {"openAPIV3Schema": _object(properties)},
                }
            ],
        },
    }


def _template(spec: Object) -> Object:
    # Nothing is required: the variable of each Cluster sets the member.
    texts = {"type": "object", "additionalProperties": _TEXT}
    metadata = _object({"labels": texts, "annotations": texts})
    return _object({"template": _object({"metadata": metadata, "spec": _object(spec)})})


def _object(properties: Object, *, required: list[str] | None = None) -> Object:
    schema: Object = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _list(items: Object, *, key: str) -> Object:
    return {
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


_CONDITIONS = _list(
    _object(
        dict.fromkeys(("type", "status", "reason", "message"), _TEXT)
        | {"lastTransitionTime": {"type": "string", "format": "date-time"}},
        required=["type", "status"],
    ),
    key="type",
)
