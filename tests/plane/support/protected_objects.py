"""The objects of protection's table, each in its state, and what a DELETE of them is answered with."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support.objects import crd, define, new_object, until_allowed
from tests.plane.support.protection_table import COPIES, LABEL, OTHERS, ROWS, P
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    JOBS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from unwind.api.rights import HOME
from unwind.concurrency import gather_limited
from unwind.kube import object_watch
from unwind.kube.errors import AlreadyExistsError, ApiError
from unwind.protection import manifests
from unwind.protection.protected_kinds import DEFINITION, KINDS, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.plane.support.protection_table import Row
    from unwind.kube.client import Client, Object
    from unwind.protection.protected_kinds import ProtectedKind

MANAGER = f"system:serviceaccount:{HOME}:unwind"
ROOM = "rooms"
"""Where everything is that is in a namespace."""
_AT_ONCE = 8


async def serve(client: Client, kinds: Iterable[ProtectedKind] = KINDS) -> None:
    """Have all kinds served that are not Kubernetes' own, and wait until they are."""
    for kind in (*kinds, *OTHERS):
        if kind.built_in:
            continue
        resource = Resource(kind.group, kind.versions[-1], kind.plural, kind.kind, namespaced=kind.namespaced)
        await define(client, crd(resource, *kind.versions))


# Objects


async def put_all(client: Client, rows: Iterable[Row] = ROWS) -> None:
    """Have every row's object there, in its state. To be done while nobody minds what labels say."""
    await serve(client)
    with suppress(AlreadyExistsError):
        await client.create(NAMESPACES, new_object(NAMESPACES, ROOM))
    await object_watch.until(client, SERVICE_ACCOUNTS, "default", lambda it: it is not None, "there", namespace=ROOM)
    await gather_limited((put(client, row) for row in rows), limit=_AT_ONCE)


async def put(client: Client, row: Row) -> None:
    """Have a row's object there, in its state.

    idle: nothing depends on it. busy: something does. unsaid, unreadable: it does not say how much, or says a word.
    terminating: it is being deleted. controlled: another object is its controller. All others: what is in a namespace,
    or of a CRD.
    """
    state, kind = row.state, row.kind
    if kind == NAMESPACE:
        await _namespace(client, row)
    elif kind == DEFINITION:
        await _definition(client, row)
    else:
        body = _body(row)
        if state == "controlled":
            body["metadata"]["ownerReferences"] = [await _controller(client, f"{_other(row)}-{row.kind.plural}", ROOM)]
        await client.create(row.resource, body)
        await _become(client, row)
    if state == "terminating":
        await _begin_deletion(client, row.resource, name_of(row), room_of(row))
        label = {"metadata": {"labels": {LABEL: row.label}}}
        await client.patch(row.resource, name_of(row), label, namespace=room_of(row))


def name_of(row: Row) -> str:
    """What the row's object is called: a CRD's name says what it defines."""
    return f"{_plural(row)}.example.dev" if row.kind == DEFINITION else row.name


def room_of(row: Row) -> str | None:
    return ROOM if row.kind.namespaced else None


def _plural(row: Row) -> str:
    return f"{row.name}s"


def _metadata(row: Row) -> Object:
    metadata: Object = {"name": name_of(row)}
    if row.kind.namespaced:
        metadata["namespace"] = ROOM
    if row.state == "terminating":
        return metadata | {"finalizers": ["example.dev/hold"]}
    return metadata | ({"labels": {LABEL: row.label}} if row.label is not None else {})


def _body(row: Row) -> Object:
    fill = _CONTENT.get(row.kind.kind)
    content = fill(row) if fill else {}
    about = {"apiVersion": row.resource.api_version, "kind": row.kind.kind, "metadata": _metadata(row)}
    return about | content


def pod(labels: dict[str, str], **spec: Any) -> Object:
    """A template of Pods."""
    # On no node: it stays Pending, and nobody ends it.
    nowhere = {"nodeSelector": {"example.dev/nowhere": "true"}}
    containers = [{"name": "main", "image": "registry.example/app"}]
    return {"metadata": {"labels": labels}, "spec": {"containers": containers} | nowhere | spec}


def _workload(row: Row) -> Object:
    # Each has Pods of its own, and on no node.
    match = {"app": row.name}
    replicas: Any = {"busy": 2, "unsaid": None, "unreadable": "many"}.get(row.state, 0)
    said = {} if row.state == "unsaid" else {"replicas": replicas}
    return {"spec": {"selector": {"matchLabels": match}, "template": pod(match), **said}}


def _daemons(row: Row) -> Object:
    match = {"app": row.name}
    # The nodes that there are, or none.
    template = pod(match, nodeSelector={}) if row.state == "busy" else pod(match)
    return {"spec": {"selector": {"matchLabels": match}, "template": template}}


def _job(row: Row) -> Object:
    return {"spec": {"suspend": row.state != "busy", "template": pod({}, restartPolicy="Never")}}


def _cron_job(row: Row) -> Object:
    template = {"spec": {"suspend": True, "template": pod({}, restartPolicy="Never")}}
    return {"spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": template}}


_STORAGE: Object = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}


def _claim(row: Row) -> Object:
    volume = {"volumeName": _other(row)} if row.state == "busy" else {"volumeName": "none-such"}
    return {"spec": _STORAGE | {"resources": {"requests": {"storage": "1Mi"}}} | volume}


def _volume(row: Row) -> Object:
    claim = {"claimRef": {"namespace": ROOM, "name": _other(row)}} if row.state == "busy" else {}
    return {"spec": _volume_spec() | claim}


def _volume_spec() -> Object:
    # Reserved for nobody who asks for just any.
    return _STORAGE | {"capacity": {"storage": "1Mi"}, "hostPath": {"path": "/nowhere"}}


def _other(row: Row) -> str:
    return f"{row.name}-other"


_CONTENT: dict[str, Callable[[Row], Object]] = {
    "Deployment": _workload,
    "StatefulSet": _workload,
    "ReplicaSet": _workload,
    "CloneSet": _workload,
    "UnitedDeployment": _workload,
    "Service": lambda _: {"spec": {"ports": [{"port": 80}], "clusterIP": "None"}},
    "Ingress": lambda _: {"spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}},
    "DaemonSet": _daemons,
    "Job": _job,
    "CronJob": _cron_job,
    "PersistentVolumeClaim": _claim,
    "PersistentVolume": _volume,
    "PriorityClass": lambda _: {"value": 1},
    "EndpointSlice": lambda _: {"addressType": "IPv4", "endpoints": []},
    "Cluster": lambda _: {"spec": {"syncMode": "Push"}},
    "ClusterProfile": lambda row: {
        "spec": {"clusterSelector": {"matchLabels": {"no": "where"}}},
        "status": {"matchingClusters": [{"name": "edge"}] if row.state == "busy" else []},
    },
}


async def _become(client: Client, row: Row) -> None:
    """Have a busy one be seen as busy by whoever says so in its status."""
    if row.state != "busy":
        return
    name, where = row.name, room_of(row)
    match row.kind.kind:
        case "DaemonSet":
            await _until(client, row, lambda it: it["status"].get("currentNumberScheduled") == 2)
        case "Job":
            await _until(client, row, lambda it: it["status"].get("active") == 1)
        case "CronJob":
            await _run_by(client, row)
        case "PersistentVolumeClaim":
            claim = {"claimRef": {"namespace": ROOM, "name": name}}
            volume = new_object(PERSISTENT_VOLUMES, _other(row), spec=_volume_spec() | claim)
            await client.create(PERSISTENT_VOLUMES, volume)
            await _until(client, row, _bound)
        case "PersistentVolume":
            spec = _STORAGE | {"resources": {"requests": {"storage": "1Mi"}}, "volumeName": name}
            bound = new_object(PERSISTENT_VOLUME_CLAIMS, _other(row), ROOM, spec=spec)
            await client.create(PERSISTENT_VOLUME_CLAIMS, bound)
            await _until(client, row, _bound)
    assert await client.get(row.resource, name, namespace=where)


async def _controller(client: Client, name: str, namespace: str) -> Object:
    """A reference to a controller that exists: the garbage collector deletes objects of one that does not."""
    made = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, name, namespace))
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made["metadata"]["uid"]}
    return about | {"controller": True}


async def _run_by(client: Client, row: Row) -> None:
    """A Job that a CronJob runs: one that is not there would be struck off its list."""
    owner = await client.get(row.resource, row.name, namespace=ROOM)
    reference = {
        "apiVersion": row.resource.api_version,
        "kind": row.kind.kind,
        "name": row.name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    job = new_object(JOBS, _other(row), ROOM, spec={"suspend": True, "template": pod({}, restartPolicy="Never")})
    job["metadata"]["ownerReferences"] = [reference]
    made = await client.create(JOBS, job)
    active = {"apiVersion": "batch/v1", "kind": "Job", "namespace": ROOM, "name": _other(row)}
    status = {"status": {"active": [active | {"uid": made["metadata"]["uid"]}]}}
    await client.patch(row.resource, row.name, status, namespace=ROOM, subresource="status")


def _bound(obj: Object) -> bool:
    return bool(obj["status"].get("phase") == "Bound")


async def _until(client: Client, row: Row, state: Any) -> None:
    await object_watch.until(
        client, row.resource, row.name, lambda it: it is not None and state(it), row.state, namespace=room_of(row)
    )


async def _begin_deletion(client: Client, resource: Resource, name: str, namespace: str | None = None) -> None:
    found = await client.get(resource, name, namespace=namespace)
    # Right after an installation, policies with parameters refuse everything until the API server has read these.
    await until_allowed(lambda: client.delete(resource, name, uid=found["metadata"]["uid"], namespace=namespace))


# What is in a namespace, or of a CRD


async def _namespace(client: Client, row: Row) -> None:
    await client.create(NAMESPACES, new_object(NAMESPACES, row.name) | {"metadata": _metadata(row)})
    state, name = row.state, row.name
    if state.endswith("-pod"):
        await object_watch.until(
            client, SERVICE_ACCOUNTS, "default", lambda it: it is not None, "there", namespace=name
        )
        one = new_object(PODS, "one", name, spec=pod({})["spec"])
        if state == "terminating-pod":
            one["metadata"]["finalizers"] = ["example.dev/hold"]
        await client.create(PODS, one)
        if state == "terminating-pod":
            await _begin_deletion(client, PODS, "one", name)
        elif state != "pending-pod":
            phase = {"status": {"phase": state.removesuffix("-pod").capitalize()}}
            await client.patch(PODS, "one", phase, namespace=name, subresource="status")
    elif state.endswith("-claim"):
        volume = {"bound-claim": _other(row), "lost-claim": _other(row)}.get(state, "none-such")
        spec = _STORAGE | {"resources": {"requests": {"storage": "1Mi"}}, "volumeName": volume}
        await client.create(PERSISTENT_VOLUME_CLAIMS, new_object(PERSISTENT_VOLUME_CLAIMS, "one", name, spec=spec))
        if state != "pending-claim":
            await _bind(client, _other(row), name)
        if state == "lost-claim":
            await _lose(client, _other(row), name)
    elif state == "protected":
        guarded = new_object(CONFIG_MAPS, "kept", name)
        guarded["metadata"]["labels"] = {LABEL: "Always"}
        await client.create(CONFIG_MAPS, guarded)
    elif state.startswith(("protected-", "controlled-")):
        await _labelled_in(client, state, name)


async def _labelled_in(client: Client, state: str, namespace: str) -> None:
    """An object of another kind in a namespace, labelled Always."""
    how, _, lower = state.partition("-")
    kind = next(copy for copy in (*OTHERS, *COPIES) if copy.kind.lower() == lower)
    resource = Resource(kind.group, "v1", kind.plural, kind.kind)
    fill = _CONTENT.get(kind.kind)
    body = new_object(resource, "kept", namespace) | (fill(ROWS[0]) if fill else {})
    body["metadata"]["labels"] = {LABEL: "Always"}
    if how == "controlled":
        body["metadata"]["ownerReferences"] = [await _controller(client, "owner", namespace)]
    await client.create(resource, body)


async def _bind(client: Client, volume: str, namespace: str) -> None:
    claim = {"claimRef": {"namespace": namespace, "name": "one"}}
    await client.create(PERSISTENT_VOLUMES, new_object(PERSISTENT_VOLUMES, volume, spec=_volume_spec() | claim))
    await object_watch.until(
        client, PERSISTENT_VOLUME_CLAIMS, "one", lambda it: bool(it and _bound(it)), "bound", namespace=namespace
    )


async def _lose(client: Client, volume: str, namespace: str) -> None:
    """A claim is lost when its volume is gone, which is held as long as it is bound."""
    await _begin_deletion(client, PERSISTENT_VOLUMES, volume)
    await client.patch(PERSISTENT_VOLUMES, volume, {"metadata": {"finalizers": None}})
    await object_watch.until(
        client,
        PERSISTENT_VOLUME_CLAIMS,
        "one",
        lambda it: bool(it and it["status"].get("phase") == "Lost"),
        "lost",
        namespace=namespace,
    )


async def _definition(client: Client, row: Row) -> None:
    kind = "Thing" + row.name.title().replace("-", "")
    resource = Resource("example.dev", "v1", _plural(row), kind, namespaced=False)
    body = crd(resource)
    body["metadata"] = _metadata(row)
    await define(client, body)
    if row.state not in ("resource", "terminating-resource", "protected-resource", "unserved"):
        return
    obj = new_object(resource, "one")
    if row.state == "terminating-resource":
        obj["metadata"]["finalizers"] = ["example.dev/hold"]
    if row.state in ("protected-resource", "unserved"):
        obj["metadata"]["labels"] = {LABEL: "Always"}
    await until_allowed(lambda: client.create(resource, obj), within=30)
    if row.state == "terminating-resource":
        await _begin_deletion(client, resource, "one")
    if row.state == "unserved":
        unserved = [item | {"served": False} for item in body["spec"]["versions"]]
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name_of(row), {"spec": {"versions": unserved}})


# What a DELETE of them is answered with


async def answer(client: Client, row: Row) -> str:
    """The words that its DELETE (a dry run) is refused with, from the beginning of ours; empty if it is let through."""
    found = await client.get(row.resource, name_of(row), namespace=room_of(row))
    try:
        await client.delete(
            row.resource, name_of(row), uid=found["metadata"]["uid"], namespace=room_of(row), dry_run=True
        )
    except ApiError as error:
        return ours(error)
    return ""


def ours(error: ApiError) -> str:
    """What we say, without what the API server says of who said it. Anything else is not a denial."""
    message = error.status.message
    assert P in message, error
    assert (error.code, error.reason) == (403, "Forbidden"), error
    return message[message.index(P) :]


async def differences(client: Client, rows: Iterable[Row]) -> list[str]:
    """The rows that are not answered as they should be."""
    found: list[str] = []

    async def check(row: Row) -> None:
        try:
            said = await answer(client, row)
        except AssertionError as error:
            said = f"no denial of ours: {error}"
        if not (said.startswith(row.denied) if row.denied else said == ""):
            found.append(f"{row}: {row.denied or 'nothing'!r} expected, and not {said!r}")

    await gather_limited((check(row) for row in rows), limit=_AT_ONCE)
    return sorted(found)


async def until_answered(client: Client, rows: Iterable[Row], *, switched_on: bool = True) -> None:
    """Return when all rows are answered as expected: policies and webhooks take effect after a moment.

    Switched off, all of them are allowed.
    """
    expected = [row if switched_on else msgspec.structs.replace(row, denied="") for row in rows]
    found: list[str] = []

    async def as_expected() -> bool:
        found[:] = await differences(client, expected)
        return not found

    try:
        await eventually(as_expected, within=90)
    except AssertionError:
        raise AssertionError("\n".join(found)) from None


async def delete(client: Client, resource: Resource, obj: Object) -> None:
    """Delete exactly this one."""
    metadata = obj["metadata"]
    await client.delete(resource, metadata["name"], uid=metadata["uid"], namespace=metadata.get("namespace"))


async def apply_policies(client: Client) -> None:
    """Write the admission policies of protection. The API server heeds them a moment later."""
    policies, bindings = manifests.policy_objects(HOME)
    for policy in policies:
        await client.apply(VALIDATING_ADMISSION_POLICIES, policy)
    for binding in bindings:
        await client.apply(VALIDATING_ADMISSION_POLICY_BINDINGS, binding)
