"""Objects that stay and depend on objects that are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.resources import (
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.api.sveltos import CLUSTER_PROFILES, PROFILES
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Client, Object

INGRESSES = Resource("networking.k8s.io", "v1", "ingresses", "Ingress")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SHOWN = 5

Used = tuple[str, str, str, str]
"""An object by group, kind, namespace and name, as references name it."""


def used_objects(ref: ObjectRef) -> Used:
    return ref.group, ref.kind, ref.namespace, ref.name


async def dependent_warnings(client: Client, going: Iterable[ObjectRef]) -> tuple[str, ...]:
    """A warning for each of these objects that is used by an object that stays. Kinds that are forbidden or not served
    are skipped."""
    refs = {used_objects(ref): ref for ref in going}
    uids = {ref.uid for ref in refs.values()}
    there = {(ref.group, ref.kind) for ref in refs.values()}
    told: dict[Used, list[str]] = {}
    for resource, kinds, uses in _USERS:
        if not there.intersection((kind.group, kind.kind) for kind in kinds):
            continue
        beside = sorted({ref.namespace for ref in refs.values() if ref.namespace})
        for namespace in beside if resource in _BESIDE else [None]:
            for item in await _list(client, resource, namespace):
                if item["metadata"]["uid"] not in uids:
                    for use in dict.fromkeys(uses(item)):
                        if use in refs:
                            told.setdefault(use, []).append(_named(resource, item))
    return tuple(f"{ref} is deleted, but still used by {_some(told[use])}" for use, ref in refs.items() if use in told)


async def _list(client: Client, resource: Resource, namespace: str | None) -> list[Object]:
    try:
        return await client.list(resource, namespace=namespace)
    except ApiError as error:
        if error.code in (403, 404):
            return []
        raise


def _named(resource: Resource, one: Object) -> str:
    name, namespace = one["metadata"]["name"], one["metadata"].get("namespace")
    return f"{resource.kind} {namespace}/{name}" if namespace else f"{resource.kind} {name}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more


# The references of objects, by kind (pure).


def _of(resource: Resource, namespace: str, name: Any) -> Iterator[Used]:
    if isinstance(name, str) and name:
        yield resource.group, resource.kind, namespace if resource.namespaced else "", name


def by_pod(pod: Object) -> Iterator[Used]:
    """The volumes, the environment and the ServiceAccount of a Pod."""
    spec, home = pod.get("spec") or {}, pod["metadata"].get("namespace", "")
    for volume in spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            yield from _of(CONFIG_MAPS, home, (source.get("configMap") or {}).get("name"))
            secret = source.get("secret") or {}
            yield from _of(SECRETS, home, secret.get("secretName") or secret.get("name"))
        yield from _of(PERSISTENT_VOLUME_CLAIMS, home, (volume.get("persistentVolumeClaim") or {}).get("claimName"))
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        given = [item.get("valueFrom") or {} for item in container.get("env") or ()]
        for key, resource in (("configMap", CONFIG_MAPS), ("secret", SECRETS)):
            for item in given:
                yield from _of(resource, home, (item.get(f"{key}KeyRef") or {}).get("name"))
            for item in container.get("envFrom") or ():
                yield from _of(resource, home, (item.get(f"{key}Ref") or {}).get("name"))
    for item in spec.get("imagePullSecrets") or ():
        yield from _of(SECRETS, home, item.get("name"))
    yield from _of(SERVICE_ACCOUNTS, home, spec.get("serviceAccountName"))


def by_ingress(ingress: Object) -> Iterator[Used]:
    spec, home = ingress.get("spec") or {}, ingress["metadata"].get("namespace", "")
    paths = [path for rule in spec.get("rules") or () for path in (rule.get("http") or {}).get("paths") or ()]
    for backend in [spec.get("defaultBackend") or {}, *(path.get("backend") or {} for path in paths)]:
        yield from _of(SERVICES, home, (backend.get("service") or {}).get("name"))
    for item in spec.get("tls") or ():
        yield from _of(SECRETS, home, item.get("secretName"))


def by_autoscaler(autoscaler: Object) -> Iterator[Used]:
    scaled = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = scaled.get("apiVersion", "").rpartition("/")[0]
    yield group, scaled.get("kind", ""), autoscaler["metadata"].get("namespace", ""), scaled.get("name", "")


def by_webhooks(configuration: Object) -> Iterator[Used]:
    for webhook in configuration.get("webhooks") or ():
        yield from _service((webhook.get("clientConfig") or {}).get("service"))


def by_api_service(api_service: Object) -> Iterator[Used]:
    yield from _service((api_service.get("spec") or {}).get("service"))


def by_conversion(definition: Object) -> Iterator[Used]:
    conversion = (definition.get("spec") or {}).get("conversion") or {}
    yield from _service(((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service"))


def by_binding(binding: Object) -> Iterator[Used]:
    home = binding["metadata"].get("namespace", "")
    role = binding.get("roleRef") or {}
    yield from _of(ROLES if role.get("kind") == ROLES.kind else CLUSTER_ROLES, home, role.get("name"))
    for subject in binding.get("subjects") or ():
        if subject.get("kind") == SERVICE_ACCOUNTS.kind:
            yield from _of(SERVICE_ACCOUNTS, subject.get("namespace") or home, subject.get("name"))


def by_profile(profile: Object) -> Iterator[Used]:
    """The sources of a profile's add-ons, except those that are looked up in the namespace of each cluster."""
    home, spec = profile["metadata"].get("namespace", ""), profile.get("spec") or {}
    given = list(spec.get("policyRefs") or ())
    given += [item for chart in spec.get("helmCharts") or () for item in chart.get("valuesFrom") or ()]
    for item in given:
        resource = SECRETS if item.get("kind") == SECRETS.kind else CONFIG_MAPS
        if place := item.get("namespace") or home:
            yield from _of(resource, place, item.get("name"))


def _service(given: Object | None) -> Iterator[Used]:
    if given:
        yield from _of(SERVICES, given.get("namespace", ""), given.get("name"))


_SOURCES = (CONFIG_MAPS, SECRETS)
_WORKLOADS = tuple(
    Resource("apps", "v1", f"{kind.lower()}s", kind) for kind in ("Deployment", "StatefulSet", "ReplicaSet")
)
_USERS: tuple[tuple[Resource, tuple[Resource, ...], Callable[[Object], Iterator[Used]]], ...] = (
    (PODS, (*_SOURCES, PERSISTENT_VOLUME_CLAIMS, SERVICE_ACCOUNTS), by_pod),
    (INGRESSES, (SERVICES, SECRETS), by_ingress),
    (AUTOSCALERS, _WORKLOADS, by_autoscaler),
    (VALIDATING_WEBHOOK_CONFIGURATIONS, (SERVICES,), by_webhooks),
    (MUTATING_WEBHOOK_CONFIGURATIONS, (SERVICES,), by_webhooks),
    (API_SERVICES, (SERVICES,), by_api_service),
    (CUSTOM_RESOURCE_DEFINITIONS, (SERVICES,), by_conversion),
    (CLUSTER_ROLE_BINDINGS, (SERVICE_ACCOUNTS, CLUSTER_ROLES), by_binding),
    (ROLE_BINDINGS, (SERVICE_ACCOUNTS, CLUSTER_ROLES, ROLES), by_binding),
    (CLUSTER_PROFILES, _SOURCES, by_profile),
    (PROFILES, _SOURCES, by_profile),
)
# These only refer to objects in their own namespace.
_BESIDE = (PODS, INGRESSES, AUTOSCALERS)
