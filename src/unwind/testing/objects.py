"""A fake API server: objects in memory, behind the real client. For deleters that run without a cluster.

It implements what deletions need: uids and versions, preconditions, finalizers, generations, owners. It checks no
schema and admits everything; test anything else on a real one (`unwind.testing.plugin`).
"""

from __future__ import annotations

import copy
import re
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from unwind.api import resources as known
from unwind.api.resources import Resource
from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.decoding import Key, Metadata
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.transport import ServerAnswer
from unwind.kube.watches import Absence, Changes, Subscription, Watches
from unwind.testing.clock import StillClock
from unwind.testing.scripts import checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from unwind.clock import Clock
    from unwind.kube.client import Object


# Watches on objects in memory: changes are reported at once, and tests can trigger events.


class ObjectWatcher(Watches):
    """Subscriptions to objects in memory. It opens nothing, and needs no event loop."""

    def __init__(self, objects: Objects, *, clock: Clock, cluster: str) -> None:
        super().__init__(objects.client, cluster=cluster, clock=clock)
        self._of = objects
        self._waiting: list[_Absence | _Changes] = []

    async def absence(self, resource: Resource, *, name: str, uid: str, namespace: str = "") -> Absence:
        await checkpoint()
        absence = _Absence(self, resource, Key(namespace, name), uid)
        self._waiting.append(absence)
        return absence

    async def changes(self, resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Changes:
        await checkpoint()
        changes = _Changes(self, resource, namespace or None, name)
        self._waiting.append(changes)
        return changes

    async def confirm(self) -> None:
        await checkpoint()

    def fire(self) -> None:
        """Notify all subscriptions of changes."""
        for item in list(self._waiting):
            if isinstance(item, Changes):
                item.tell()

    def changed(self, resource: Resource, obj: Object) -> None:
        """Notify the subscriptions of an object that was added or changed."""
        metadata = obj["metadata"]
        for item in list(self._waiting):
            if (
                isinstance(item, _Changes)
                and item.resource == resource
                and item.namespace in (None, metadata.get("namespace"))
                and item.name in (None, metadata["name"])
            ):
                item.tell()

    def removed(self, resource: Resource, obj: Object) -> None:
        """Notify the subscriptions of an object that was removed."""
        self.changed(resource, obj)
        for item in list(self._waiting):
            if isinstance(item, _Absence) and item.uid == obj["metadata"]["uid"]:
                item.tell()

    def seen(self, resource: Resource, key: Key) -> Metadata | None:
        obj = self._of.get(resource, key.name, namespace=key.namespace)
        return msgspec.convert(obj["metadata"], Metadata, strict=False) if obj else None

    def leave(self, one: Subscription) -> None:
        self._waiting = [other for other in self._waiting if other is not one]

    @property
    def waiting(self) -> int:
        """Number of subscriptions."""
        return len(self._waiting)


class _Absence(Absence):
    def __init__(self, following: Any, resource: Resource, key: Key, uid: str) -> None:
        # It only needs to be removed from what it belongs to and, below, to read the current state.
        Subscription.__init__(self, following)
        self.resource = resource
        self.key = key
        self.uid = uid
        self._following: ObjectWatcher = following

    @property
    def seen(self) -> Metadata | None:
        held = self._following.seen(self.resource, self.key)
        return held if held is not None and held.uid == self.uid else None


class _Changes(Changes):
    def __init__(self, following: Any, resource: Resource, namespace: str | None, name: str | None) -> None:
        super().__init__(following, namespace, name)
        self.resource = resource


_FOREGROUND = "foregroundDeletion"
_FLEETING = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
_KNOWN = [var for var in vars(known).values() if isinstance(var, Resource)]


class _Refusal(Exception):  # noqa: N818 - an answer
    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message


class _Target(NamedTuple):
    """What a request is about."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]


class Objects:
    """Objects, and the server that holds them: `client` and `watches` lead to it.

    Every request can be interrupted before it has done anything, and after.
    """

    def __init__(
        self, *objects: Object, resources: Iterable[Resource] = (), clock: Clock | None = None, cluster: str = "standin"
    ) -> None:
        """`resources`: kinds whose plural is not just the kind with an s, or that have no object yet."""
        self.clock = clock or StillClock()
        self.client = Client(ClusterConnection(server="https://objects.invalid"), transport=self)
        self.watches = ObjectWatcher(self, clock=self.clock, cluster=cluster)
        self.requests: list[str] = []
        """The requests in order: `PATCH /apis/apps/v1/namespaces/default/deployments/web`."""
        self._resources = [*resources, *_KNOWN]
        self._objects: dict[tuple[Resource, str, str], Object] = {}
        self._versions = count(1)
        self._uids = count(1)
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": cluster}})
        for obj in objects:
            self.put(obj)

    # Actions of a test, as another client

    def put(self, obj: Object) -> Object:
        """Add an object; a missing uid or version is set."""
        resource = self.resource(obj)
        made: Object = copy.deepcopy(obj)
        metadata = made["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        if resource.namespaced:
            metadata.setdefault("namespace", "default")
        metadata.setdefault("generation", 1)
        self._write(resource, made)
        return copy.deepcopy(made)

    def get(self, resource: Resource, name: str, *, namespace: str = "default") -> Object | None:
        """The object; None if it does not exist."""
        found = self._objects.get(_key(resource, namespace, name))
        return copy.deepcopy(found)

    def change(self, resource: Resource, name: str, patch: Object, *, namespace: str = "default") -> None:
        """Merge a patch into an object."""
        self._merge(resource, self._objects[_key(resource, namespace, name)], patch)

    def remove(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        """Remove an object, even if it has finalizers."""
        obj = self._objects.pop(_key(resource, namespace, name), None)
        if obj is not None:
            self.watches.removed(resource, obj)

    def all(self, resource: Resource) -> list[Object]:
        """All objects of a resource."""
        return [copy.deepcopy(obj) for (kind, _, _), obj in self._objects.items() if kind == resource]

    def settle(self) -> None:
        """Act as the garbage collector: delete objects without an owner, and then owners that waited for their
        dependents."""
        for (resource, namespace, name), obj in list(self._objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if owners and not any(self._stays(owner["uid"]) for owner in owners):
                self._delete(resource, namespace, name, propagation=_FOREGROUND)
        for (resource, _, _), obj in list(self._objects.items()):
            metadata = obj["metadata"]
            finalizers = metadata.get("finalizers") or []
            if metadata.get("deletionTimestamp") and _FOREGROUND in finalizers and not self._owned(metadata["uid"]):
                left = [finalizer for finalizer in finalizers if finalizer != _FOREGROUND]
                self._merge(resource, obj, {"metadata": {"finalizers": left or None}})

    def left(self) -> dict[str, Object]:
        """All objects by path, without what differs between runs: uids, versions, times."""
        return {
            resource.path(name, namespace=namespace): {
                **obj,
                "metadata": {key: value for key, value in obj["metadata"].items() if key not in _FLEETING},
            }
            for (resource, namespace, name), obj in sorted(self._objects.items(), key=lambda one: str(one[0]))
        }

    def resource(self, obj: Object) -> Resource:
        """The resource of an object's kind."""
        for item in self._resources:
            if (item.api_version, item.kind) == (obj["apiVersion"], obj["kind"]):
                return item
        group, _, version = obj["apiVersion"].rpartition("/")
        kind: str = obj["kind"]
        plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
        made = Resource(group, version, plural, kind, namespaced="namespace" in obj["metadata"])
        self._resources.append(made)
        return made

    # The server

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        await checkpoint()
        self.requests.append(f"{method} {target.partition('?')[0]}")
        code, answer = self._answer(method, target, msgspec.json.decode(body) if body else None, headers)
        await checkpoint()
        return ServerAnswer(code, msgspec.json.encode(answer))

    @asynccontextmanager
    async def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[ServerAnswer | AsyncIterator[list[bytes]]]:
        yield ServerAnswer(405, b"the fake has no streams; use ctx.changes(...) or ctx.watches")

    async def close(self) -> None:
        pass  # there is no connection

    def _answer(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> tuple[int, object]:
        path = urlsplit(target).path
        if path in ("/api", "/apis"):
            return 200, self._discovery(core=path == "/api")
        try:
            where = self._parse(target)
        except UnwindError:
            return 404, "404 page not found"
        try:
            answering: Callable[[_Target, Any], Object] = getattr(self, f"_on_{method.lower()}")
            return 200, answering(where, body)
        except _Refusal as no:
            resource = where.resource
            details = {"name": where.name, "group": resource.group, "kind": resource.plural}
            return no.code, {
                "kind": "Status",
                "code": no.code,
                "reason": no.reason,
                "message": f'{resource.plural} "{where.name}": {no.message}',
                "details": details,
            }

    def _parse(self, target: str) -> _Target:
        address = urlsplit(target)
        parts = address.path.strip("/").split("/")
        group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        for resource in self._resources:
            if (resource.group, resource.version, resource.plural) == (group, version, rest[0]):
                name, subresource = [*rest[1:], "", ""][:2]
                query = {key: values[0] for key, values in parse_qs(address.query).items()}
                return _Target(resource, namespace, name, subresource, query)
        raise UnwindError(f"nothing is served at {target}")

    def _on_get(self, where: _Target, _: Any) -> Object:
        if where.name:
            return self._found(where)
        wanted = where.query.get("labelSelector", "")
        selects = _selector(wanted)
        if where.query.get("fieldSelector") or selects is None:
            raise _Refusal(400, "BadRequest", "the fake selects only by key=value, or by one key in (values)")
        items = [
            obj
            for (resource, namespace, _), obj in self._objects.items()
            if resource == where.resource
            and where.namespace in ("", namespace)
            and selects(obj["metadata"].get("labels") or {})
        ]
        kind = f"{where.resource.kind}List"
        return {"kind": kind, "metadata": {"resourceVersion": str(next(self._versions))}, "items": items}

    def _on_post(self, where: _Target, body: Object) -> Object:
        if where.subresource:
            raise _Refusal(405, "MethodNotAllowed", f"the fake has no subresource {where.subresource}")
        name = body["metadata"]["name"]
        if _key(where.resource, where.namespace, name) in self._objects:
            raise _Refusal(409, "AlreadyExists", f"{name} already exists")
        return self.put({**body, "apiVersion": where.resource.api_version, "kind": where.resource.kind})

    def _on_patch(self, where: _Target, body: Any) -> Object:
        if isinstance(body, list):
            raise _Refusal(415, "UnsupportedMediaType", "the fake supports only merge patches, no JSON patches")
        if where.subresource == "status":
            body = {key: body[key] for key in ("metadata", "status") if key in body}
        obj = self._found(where)
        self._check(obj, body.get("metadata") or {})
        self._merge(where.resource, obj, body)
        return obj

    def _on_delete(self, where: _Target, options: Object | None) -> Object:
        obj = self._found(where)
        self._check(obj, (options or {}).get("preconditions") or {})
        if (options or {}).get("dryRun"):
            return copy.deepcopy(obj)
        propagation = _FOREGROUND if (options or {}).get("propagationPolicy") == "Foreground" else ""
        left = self._delete(where.resource, where.namespace, where.name, propagation=propagation)
        return left or {"kind": "Status", "status": "Success"}

    def _delete(self, resource: Resource, namespace: str, name: str, *, propagation: str) -> Object | None:
        """The object, if it still has finalizers."""
        obj = self._objects[_key(resource, namespace, name)]
        metadata = obj["metadata"]
        finalizers = [*(metadata.get("finalizers") or [])]
        if propagation and _FOREGROUND not in finalizers:
            finalizers.append(propagation)
        if not finalizers:
            self.remove(resource, name, namespace=namespace)
            return None
        if not metadata.get("deletionTimestamp"):
            patch = {"finalizers": finalizers, "deletionTimestamp": f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"}
            self._merge(resource, obj, {"metadata": patch})
        return obj

    def _found(self, where: _Target) -> Object:
        obj = self._objects.get(_key(where.resource, where.namespace, where.name))
        if obj is None:
            raise _Refusal(404, "NotFound", "not found")
        return obj

    def _check(self, obj: Object, supposed: Object) -> None:
        for key in ("uid", "resourceVersion"):
            if supposed.get(key) not in (None, obj["metadata"][key]):
                raise _Refusal(409, "Conflict", f"its {key} is {obj['metadata'][key]}, not {supposed[key]}")

    def _merge(self, resource: Resource, obj: Object, patch: Object) -> None:
        before = copy.deepcopy(obj)
        _merged(obj, {key: value for key, value in patch.items() if key not in ("apiVersion", "kind")})
        metadata = obj["metadata"]
        metadata["uid"], metadata["resourceVersion"] = before["metadata"]["uid"], before["metadata"]["resourceVersion"]
        if obj == before:
            return
        if obj.get("spec") != before.get("spec"):
            metadata["generation"] += 1
        self._write(resource, obj)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.remove(resource, metadata["name"], namespace=metadata.get("namespace", ""))

    def _write(self, resource: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(next(self._versions))
        self._objects[_key(resource, metadata.get("namespace", ""), metadata["name"])] = obj
        self.watches.changed(resource, obj)

    def _stays(self, uid: str) -> bool:
        """Whether an owner with this uid exists that does not wait for its dependents."""
        return any(
            obj["metadata"]["uid"] == uid
            and not (obj["metadata"].get("deletionTimestamp") and _FOREGROUND in obj["metadata"].get("finalizers", ()))
            for obj in self._objects.values()
        )

    def _owned(self, uid: str) -> bool:
        return any(
            reference["uid"] == uid
            for obj in self._objects.values()
            for reference in obj["metadata"].get("ownerReferences") or ()
        )

    def _discovery(self, *, core: bool) -> Object:
        groups: dict[str, dict[str, list[Object]]] = {}
        for resource in self._resources:
            if core is not bool(resource.group):
                kind = {
                    "resource": resource.plural,
                    "responseKind": {"kind": resource.kind},
                    "scope": "Namespaced" if resource.namespaced else "Cluster",
                    "singularResource": resource.kind.lower(),
                    "verbs": ["get", "list", "watch", "create", "patch", "delete"],
                }
                groups.setdefault(resource.group, {}).setdefault(resource.version, []).append(kind)
        return {
            "items": [
                {
                    "metadata": {"name": group},
                    "versions": [{"version": version, "resources": kinds} for version, kinds in versions.items()],
                }
                for group, versions in groups.items()
            ]
        }


def _selector(wanted: str) -> Callable[[dict[str, str]], bool] | None:
    """A predicate for labels; None for a selector that the fake does not support."""
    if found := re.fullmatch(r"(\S+) in \(([^()]*)\)", wanted):
        key, values = found[1], set(found[2].split(","))
        return lambda labels: labels.get(key) in values
    if any(c in wanted for c in "!()"):
        return None
    pairs = {tuple(pair.replace("==", "=").split("=", 1)) for pair in wanted.split(",") if pair}
    return lambda labels: pairs <= set(labels.items())


def _key(resource: Resource, namespace: str | None, name: str) -> tuple[Resource, str, str]:
    return resource, (namespace or "") if resource.namespaced else "", name


def _merged(obj: Object, patch: Object) -> None:
    """Merge as in RFC 7386: null removes, objects merge, everything else is set."""
    for key, value in patch.items():
        if value is None:
            obj.pop(key, None)
        elif isinstance(value, dict):
            inner = obj.get(key)
            obj[key] = inner if isinstance(inner, dict) else {}
            _merged(obj[key], value)
        else:
            obj[key] = copy.deepcopy(value)
