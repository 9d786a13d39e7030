"""Objects that the tests of `unwind why` ask about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.eventually import eventually
from tests.plane.support.objects import until_allowed
from unwind.api.resources import DEPLOYMENTS, EVENTS, NODES, PODS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from unwind.kube import object_watch

if TYPE_CHECKING:
    from tests.plane.support.why_answers import Asker
    from unwind.kube.client import Client, Object
    from unwind.why.answers import Answer


# Nobody listens there.
NOWHERE = "https://127.0.0.1:9/"
HOLD = "example.dev/backup"
CLAIM: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def owner(parent: Object) -> Object:
    meta = parent["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": meta["name"],
        "uid": meta["uid"],
        "blockOwnerDeletion": True,
    }


async def deployment(
    asker: Asker, name: str, *, replicas: int, node: str = "", claim: str = "", labels: dict[str, str] | None = None
) -> Object:
    spec = pod_spec(node=node, claim=claim)
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    body = {"replicas": replicas, "selector": selector, "template": template}
    return await asker.make(DEPLOYMENTS, name, spec=body, metadata={"labels": labels or {}})


def pod_spec(*, node: str = "", claim: str = "", grace: int = 0) -> Object:
    spec: Object = {"containers": [{"name": "web", "image": "web"}], "terminationGracePeriodSeconds": grace}
    if node:
        spec["nodeName"] = node
    if claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return spec


async def pod(asker: Asker, name: str, *, node: str, claim: str = "", grace: int = 0) -> Object:
    return await asker.make(PODS, name, spec=pod_spec(node=node, claim=claim, grace=grace))


async def pods(asker: Asker, app: str) -> list[Object]:
    """The Pods of a Deployment, as soon as there are some."""
    return await eventually(lambda: asker.client.list(PODS, namespace="why", labels=f"app={app}"), f"Pods of {app}")


async def ready(asker: Asker, app: str) -> None:
    """Say of the Pods of a Deployment that they are ready, as a kubelet would."""
    for item in await pods(asker, app):
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await asker.client.patch(PODS, item["metadata"]["name"], status, namespace="why", subresource="status")

    def runs(it: Object | None) -> bool:
        return bool(it and it.get("status", {}).get("readyReplicas"))

    await object_watch.until(asker.client, DEPLOYMENTS, app, runs, "ready", namespace="why")


async def node(asker: Asker, name: str, *, ready: str = "True") -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await asker.client.apply(NODES, body)
    told = {"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "NodeStatusUnknown"}]}}
    await asker.client.patch(NODES, name, told, subresource="status")


async def warn(asker: Asker, resource: Resource, obj: Object, message: str) -> None:
    meta = obj["metadata"]
    about = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        **{key: meta[key] for key in ("name", "namespace", "uid")},
    }
    await asker.make(
        EVENTS,
        f"{meta['name']}.1",
        involvedObject=about,
        type="Warning",
        reason="BackupFailed",
        message=message,
        source={"component": "backup-operator"},
    )


async def webhook(asker: Asker, name: str, concerned: str, way: Object, **more: Any) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}
    one = {
        "name": f"{name}.example.dev",
        "clientConfig": way,
        "rules": [rule],
        "matchConditions": [{"name": "concerned", "expression": f"oldObject.metadata.name == '{concerned}'"}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }
    await asker.make(VALIDATING_WEBHOOK_CONFIGURATIONS, name, webhooks=[one])


async def converted(asker: Asker, group: str) -> Resource:
    """A kind that is stored in one version and served in another, with nobody to convert it; the stored one."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    way = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": NOWHERE}}}
    await asker.define(
        group,
        versions=[
            {"name": "v1", "served": True, "storage": False, "schema": schema},
            {"name": "v1alpha1", "served": True, "storage": True, "schema": schema},
        ],
        conversion=way,
    )
    return Resource(group, "v1alpha1", "gadgets", "Gadget")


async def until_readable(asker: Asker, text: str, client: Client) -> Answer:
    """The answer for somebody whose rights take a moment to count."""
    await until_allowed(lambda: asker.ask(text, client=client), within=30)
    return await asker.ask(text, client=client)
