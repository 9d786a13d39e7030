"""The order in which the objects of one step are removed (pure; docs/architecture.md, Order inside a step)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import BUILT_IN_GROUPS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.inventory.inventories import Item


class Stage(IntEnum):
    """The stages of a removal. A stage starts when the previous one is done."""

    CUSTOM_RESOURCES = 1
    """While their operator still runs."""
    CLOUD = 2
    """Objects with cloud resources, such as load balancers, while their controllers still run."""
    CALLERS = 3
    """Objects that make the API server call this step's workloads. Calls would fail when those are gone."""
    WORKLOADS = 4
    CLAIMS = 5
    """A claim cannot be deleted while a Pod uses it."""
    REST = 6
    DEFINITIONS = 7
    NAMESPACES = 8


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the order depends on besides the entries, by uid."""

    balancers: frozenset[str] = frozenset()
    """Services of type LoadBalancer."""
    converted: frozenset[str] = frozenset()
    """CRDs whose conversion webhook is behind a Service of this step."""


_WORKLOADS = {
    ("", "Pod"),
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "CronJob"),
    ("batch", "Job"),
}
_GATEWAYS = {("networking.k8s.io", "Ingress"), ("gateway.networking.k8s.io", "Gateway")}
_CALLERS = {
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("apiregistration.k8s.io", "APIService"),
}


def stage(item: Item, facts: Facts) -> Stage:
    """The stage in which an object is removed."""
    ref = item.entry.object
    kind = (ref.group, ref.kind)
    if kind == ("", "Namespace"):
        return Stage.NAMESPACES
    if kind == ("apiextensions.k8s.io", "CustomResourceDefinition"):
        return Stage.CALLERS if ref.uid in facts.converted else Stage.DEFINITIONS
    if kind in _GATEWAYS or ref.uid in facts.balancers:
        return Stage.CLOUD
    if kind in _CALLERS:
        return Stage.CALLERS
    if kind in _WORKLOADS:
        return Stage.WORKLOADS
    if kind == ("", "PersistentVolumeClaim"):
        return Stage.CLAIMS
    return Stage.REST if ref.group in BUILT_IN_GROUPS else Stage.CUSTOM_RESOURCES


def order(items: Iterable[Item], facts: Facts = Facts()) -> list[list[Item]]:  # noqa: B008 - frozen
    """Groups of objects that are removed concurrently, one group after the other: by stage, and within a stage in the
    reverse of the order in which their sources were applied."""
    groups: dict[tuple[Stage, int], list[Item]] = {}
    for item in items:
        groups.setdefault((stage(item, facts), -item.entry.order), []).append(item)
    return [groups[key] for key in sorted(groups)]


def served_by(definition: dict[str, object], services: Collection[tuple[str, str]]) -> bool:
    """Whether a CRD is converted by a webhook behind one of these Services (namespace, name)."""
    conversion = msgspec.convert(definition, _Definition, strict=False).spec.conversion
    service = conversion.webhook.client_config.service if conversion and conversion.webhook else None
    return service is not None and (service.namespace, service.name) in services


class _Service(msgspec.Struct):
    namespace: str = ""
    name: str = ""


class _ClientConfig(msgspec.Struct):
    service: _Service | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Conversion(msgspec.Struct):
    webhook: _Webhook | None = None


class _DefinitionSpec(msgspec.Struct):
    conversion: _Conversion | None = None


class _Definition(msgspec.Struct):
    spec: _DefinitionSpec = msgspec.field(default_factory=_DefinitionSpec)
