"""What the tests of the webhook share: reviews as the API server sends them, and a server to look things up at."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from unwind.api.names import DELETE_PROTECTION_LABEL as LABEL
from unwind.clock import SYSTEM
from unwind.kube.client import Client
from unwind.kube.events import Recorder
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.transport import ServerAnswer
from unwind.manager.health import new_registry
from unwind.protection.contents_reader import ProtectionLookup
from unwind.protection.protected_kinds import EXEMPT, KINDS, ProtectedKind
from unwind.protection.webhook import DenialReporter, ProtectionWebhook
from unwind.protection.webhook_configuration import LABELS_PATH, PROTECTION_PATH
from unwind.server.routes import Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from unwind.api.meta import ObjectRef

Object = dict[str, Any]

V1, V1BETA1 = "admission.k8s.io/v1", "admission.k8s.io/v1beta1"
QUESTION = "705ab4f5-6393-11e8-b7cc-42010a800002"
ALICE: Object = {"username": "alice", "groups": ["admins"], "extra": {"scopes": ["all"]}}


def labelled(value: str | None, name: str = "it", *, namespace: str = "", **more: Any) -> Object:
    """An object with that value of the label."""
    metadata: Object = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    if namespace:
        metadata["namespace"] = namespace
    if value is not None:
        metadata["labels"] = {"app": "web", LABEL: value}
    metadata |= more.pop("metadata", {})
    return {"metadata": metadata, **more}


def crd(value: str | None = None, *, group: str = "example.dev", **spec: Any) -> Object:
    names = {"plural": "widgets", "kind": "Widget", "singular": "widget"}
    versions = [
        {"name": "v1", "served": True, "storage": False},
        {"name": "v2", "served": True, "storage": True},
        {"name": "v3", "served": False, "storage": False},
    ]
    whole = {"group": group, "names": names, "scope": "Namespaced", "versions": versions} | spec
    return labelled(value, f"widgets.{group}", spec=whole)


def review(
    kind: str,
    old: Object | None,
    *,
    group: str = "",
    version: str = "v1",
    new: Object | None = None,
    operation: str = "DELETE",
    review_version: str = V1,
    **more: Any,
) -> bytes:
    request = {
        "uid": QUESTION,
        "kind": {"group": group, "version": version, "kind": kind},
        "operation": operation,
        "userInfo": ALICE,
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
    } | more
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": review_version, "request": request})


def request(*, seconds: float = 10.0, path: str = PROTECTION_PATH) -> Request:
    return Request(method="POST", path=path, query="", headers={}, peer="10.0.0.1", ends=time.monotonic() + seconds)


WIDGET = ProtectedKind(group="example.dev", plural="widgets", kind="Widget", versions=("v2",))


def discovery(kinds: Iterable[ProtectedKind], *, core: bool, stale: Iterable[str] = ()) -> Object:
    """What `/api` or `/apis` answers: every kind in its newest version."""
    groups: dict[str, list[Object]] = {}
    for kind in kinds:
        if (kind.group == "") is core:
            resource = {
                "resource": kind.plural,
                "responseKind": {"kind": kind.kind},
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "verbs": ["delete", "get", "list"],
            }
            groups.setdefault(kind.group, []).append({"version": kind.versions[-1], "resources": [resource]})
    found = [{"metadata": {"name": group}, "versions": versions} for group, versions in groups.items()]
    if not core:
        found += [
            {"metadata": {"name": item}, "versions": [{"version": "v1", "resources": [], "freshness": "Stale"}]}
            for item in stale
        ]
    return {"kind": "APIGroupDiscoveryList", "items": found}


class Server:
    """An API server that has lists, in pages; of a kind that is not in them, it has no objects."""

    def __init__(self, lists: Mapping[str, list[Object]] | None = None, *, stale: tuple[str, ...] = ()) -> None:
        self.lists = dict(lists or {})
        self.kinds: list[ProtectedKind] = [*KINDS, *EXEMPT, WIDGET]
        self.stale = stale
        self.broken: dict[str, ServerAnswer | None] = {}
        """What is answered instead; None for nothing ever."""
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        parts = urlsplit(target)
        query = {key: unquote(values[0]) for key, values in parse_qs(parts.query).items()}
        self.asked.append((parts.path, query))
        if parts.path in self.broken:
            answer = self.broken[parts.path]
            if answer is None:
                await asyncio.Event().wait()
            assert answer
            return answer
        if parts.path in ("/api", "/apis"):
            served = discovery(self.kinds, core=parts.path == "/api", stale=self.stale)
            return ServerAnswer(200, msgspec.json.encode(served))
        found = self.lists.get(parts.path, [])
        if "labelSelector" in query:
            found = [item for item in found if LABEL in item["metadata"].get("labels", {})]
        if "fieldSelector" in query:
            done = ("Succeeded", "Failed")
            found = [item for item in found if item.get("status", {}).get("phase") not in done]
        start, limit = int(query.get("continue", 0)), int(query["limit"])
        page, rest = found[start : start + limit], len(found) - start - limit
        meta: Object = {"resourceVersion": "9"}
        if rest > 0:
            meta |= {"continue": str(start + limit), "remainingItemCount": rest}
        return ServerAnswer(200, msgspec.json.encode({"kind": "List", "metadata": meta, "items": page}))

    @asynccontextmanager
    async def stream(self, target: str, *, headers: Mapping[str, str], silence: float) -> AsyncIterator[Any]:
        yield ServerAnswer(405, b"")

    async def close(self) -> None:
        pass  # there is no connection


class Known:
    """What the caches know: as much as a test says."""

    def __init__(self, *, pods: int = 0, claims: int = 0, protected: tuple[ObjectRef, ...] = ()) -> None:
        self._pods, self._claims, self._protected = pods, claims, protected

    def pods(self, namespace: str) -> int:
        return self._pods

    def claims(self, namespace: str) -> int:
        return self._claims

    def inside(self, namespace: str) -> tuple[ObjectRef, ...]:
        return self._protected


class Webhook:
    """The handlers, with a server that answers what a test says."""

    def __init__(
        self, server: Server | None = None, *, known: Known | None = None, groups: tuple[str, ...] | None = None
    ) -> None:
        self.server = server or Server()
        client = Client(ClusterConnection(server="https://example.invalid"), transport=self.server)
        self.registry = new_registry()
        self.recorder = Recorder(client, instance="test", clock=SYSTEM)
        known = known or Known()
        self.answering = ProtectionWebhook(
            counts=known,
            guards=known,
            lookup=ProtectionLookup(client, groups=groups),
            reporter=DenialReporter(registry=self.registry, recorder=self.recorder),
        )

    async def post(self, body: bytes, *, path: str = PROTECTION_PATH, seconds: float = 10.0) -> Response:
        handler = self.answering.deletion if path == PROTECTION_PATH else self.answering.labelling
        said = handler(body, request(path=path, seconds=seconds))
        return said if isinstance(said, Response) else await said

    async def ask(self, body: bytes, *, path: str = PROTECTION_PATH, seconds: float = 10.0) -> str:
        """What is answered: nothing for a yes, or else the code and the message."""
        response = await self.post(body, path=path, seconds=seconds)
        assert response.status == 200, response
        told = msgspec.json.decode(response.body)
        assert told["response"]["uid"] == QUESTION
        assert told["kind"] == "AdmissionReview"
        if told["response"]["allowed"]:
            return ""
        return f"{told['response']['status']['code']} {told['response']['status']['message']}"

    async def label(self, body: bytes) -> str:
        return await self.ask(body, path=LABELS_PATH)

    def counted(self, kind: str, reason: str) -> float:
        return self.registry.get_sample_value("unwind_protection_denials_total", {"kind": kind, "reason": reason}) or 0
