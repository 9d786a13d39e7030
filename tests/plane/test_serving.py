"""The server on a real cluster: its certificates are shared, renewed and believed by the real API server."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.eventually import eventually
from tests.plane.support.objects import delete
from unwind.api.resources import CONFIG_MAPS, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.certificates import Authority, KeyPair
from unwind.kube.errors import ApiError, NotFoundError
from unwind.server.ca_bundles import CABundleController
from unwind.server.certificate_secret import NAME, SharedCertificate, StoredCertificates, Terms, renewed
from unwind.server.connection import BUSY
from unwind.server.listener import Listener
from unwind.server.routes import CABundleTarget, Request, Response, Route
from unwind.server.tls import Tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

HOSTS = ("127.0.0.1", "localhost")


def config_map(namespace: str, name: str = "one") -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


async def secret(client: Client, namespace: str) -> dict[str, bytes]:
    found = await client.get(SECRETS, NAME, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def seed(client: Client, namespace: str, kept: StoredCertificates) -> None:
    """Have the Secret there already, as an earlier process would have left it."""
    before = SharedCertificate(client, namespace=namespace, hosts=HOSTS)
    await before._write(None, kept)


# The Secret


async def test_replicas_that_start_at_once_share_one_certificate(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    replicas = [SharedCertificate(client, namespace=namespace, hosts=HOSTS) for _ in range(8)]
    first, *others = await asyncio.gather(*(replica.obtain() for replica in replicas))
    assert all(other == first for other in others)
    kept = await secret(client, namespace)
    assert (kept["tls.crt"], kept["tls.key"], kept["ca.crt"]) == (first[0].certificate, first[0].key, first[1])
    Authority.kept(KeyPair(certificate=kept["ca.crt"], key=kept["ca.key"]))


async def test_what_one_replica_renews_the_others_learn(plane: Plane, namespace: str) -> None:
    client, now = plane.management.client, dt.datetime.now(dt.UTC)
    old = renewed(None, hosts=HOSTS, terms=Terms(), now=now - dt.timedelta(days=59, hours=23, minutes=59, seconds=58))
    await seed(client, namespace, old)
    learned: list[list[tuple[KeyPair, bytes]]] = [[], [], []]
    async with asyncio.TaskGroup() as group:
        running = []
        for heard in learned:
            replica = SharedCertificate(client, namespace=namespace, hosts=HOSTS)
            assert (await replica.obtain())[0] == old.server

            async def use(pair: KeyPair, bundle: bytes, heard: list[tuple[KeyPair, bytes]] = heard) -> None:
                heard.append((pair, bundle))

            replica.then(use)
            running.append(group.create_task(replica.run()))
        await eventually(lambda: all(learned))
        for task in running:
            task.cancel()
    assert learned[0] == learned[1] == learned[2]
    [[(pair, bundle)], *_] = learned
    assert pair.certificate != old.server.certificate, "due after two thirds, which is now"
    assert bundle == old.bundle


@asynccontextmanager
async def following(replica: SharedCertificate) -> AsyncIterator[list[KeyPair]]:
    heard: list[KeyPair] = []

    async def use(pair: KeyPair, bundle: bytes) -> None:
        heard.append(pair)

    replica.then(use)
    running = asyncio.ensure_future(replica.run())
    try:
        yield heard
    finally:
        running.cancel()


async def test_a_secret_that_is_deleted_comes_back_as_it_was(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    replica = SharedCertificate(client, namespace=namespace, hosts=HOSTS)
    await replica.obtain()
    before = await client.get(SECRETS, NAME, namespace=namespace)
    async with following(replica) as heard:
        await client.delete(SECRETS, NAME, namespace=namespace, uid=before["metadata"]["uid"])
        async for event in client.watch(SECRETS, namespace=namespace, name=NAME):
            if event.type != "DELETED" and event.object["metadata"]["uid"] != before["metadata"]["uid"]:
                assert event.object["data"] == before["data"]
                break
    assert heard == []


async def test_a_secret_that_is_damaged_is_made_anew(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    replica = SharedCertificate(client, namespace=namespace, hosts=HOSTS)
    pair, _ = await replica.obtain()
    async with following(replica) as heard:
        await client.patch(SECRETS, NAME, {"data": {"tls.key": ""}}, namespace=namespace)
        await eventually(lambda: bool(heard))
    assert heard[0] != pair
    heard[0].check()


async def test_a_secret_that_somebody_else_looks_after_is_followed_and_never_written(
    plane: Plane, namespace: str
) -> None:
    client, authority = plane.management.client, Authority("cert-manager")
    pairs = [authority.server("unwind", hosts=HOSTS, lifetime=dt.timedelta(seconds=1)) for _ in range(2)]

    def data(pair: KeyPair) -> dict[str, str]:
        fields = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
        return {key: base64.b64encode(value).decode() for key, value in fields.items()}

    created = await client.create(
        SECRETS, {**config_map(namespace, NAME), "kind": "Secret", "type": "kubernetes.io/tls", "data": data(pairs[0])}
    )
    replica = SharedCertificate(client, namespace=namespace, hosts=("other.example",))
    assert await replica.obtain() == (pairs[0], authority.certificate)
    async with following(replica) as heard:
        patched = await client.patch(SECRETS, NAME, {"data": data(pairs[1])}, namespace=namespace)
        await eventually(lambda: bool(heard))
    assert heard == [pairs[1]]
    found = await client.get(SECRETS, NAME, namespace=namespace)
    assert found["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
    assert found["metadata"]["uid"] == created["metadata"]["uid"]


# The real API server as the caller


class Webhook:
    """A listener that the API server asks about every ConfigMap of one namespace."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.client = plane.management.client
        self.namespace = namespace
        self.ready = True
        self.asked = 0
        self.answers: list[Response] = []
        """To be given before all others."""
        self.bundles = CABundleController(self.client, [CABundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, namespace)])
        self.shown: list[KeyPair] = []

    async def review(self, body: bytes, request: Request) -> Response:
        self.asked += 1
        if self.answers:
            return self.answers.pop()
        uid = msgspec.json.decode(body)["request"]["uid"]
        allowed = b"forbidden" not in body
        answer = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": allowed, "status": {"code": 403, "message": "not this one"}},
        }
        # Every other answer ends its connection, so that there are always new ones.
        headers = (("connection", "close"),) if self.asked % 2 else ()
        return Response(msgspec.json.encode(answer), headers=headers)

    async def use(self, pair: KeyPair, bundle: bytes) -> None:
        self.bundles.use(bundle)
        await self.tls.show(pair)
        self.shown.append(pair)

    @asynccontextmanager
    async def open(self, certificate: SharedCertificate, *, failure_policy: str = "Fail") -> AsyncIterator[None]:
        pair, bundle = await certificate.obtain()
        self.tls = Tls(pair)
        self.bundles.use(bundle)
        certificate.then(self.use)
        route = Route(path="/review", name="review", handler=self.review, ready=lambda: self.ready)
        listener = Listener("https", [route], tls=self.tls)
        listening = socket.create_server(("127.0.0.1", 0))
        await listener.open(listening)
        created = await self.client.create(
            VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration(listening.getsockname()[1], failure_policy)
        )
        running = [asyncio.ensure_future(part.run()) for part in (certificate, self.bundles)]
        try:
            await self._until_called()
            yield
        finally:
            for task in running:
                task.cancel()
            # The client sends a DELETE again whose connection broke before the response, and then finds nothing.
            with suppress(NotFoundError):
                uid = created["metadata"]["uid"]
                await self.client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, self.namespace, uid=uid)
            await listener.close(grace=1)

    def _configuration(self, port: int, failure_policy: str) -> dict[str, Any]:
        return {
            "apiVersion": VALIDATING_WEBHOOK_CONFIGURATIONS.api_version,
            "kind": VALIDATING_WEBHOOK_CONFIGURATIONS.kind,
            "metadata": {"name": self.namespace},
            "webhooks": [
                {
                    "name": "review.unwind.dev",
                    "clientConfig": {"url": f"https://127.0.0.1:{port}/review"},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "resources": ["configmaps"],
                            "operations": ["CREATE"],
                        }
                    ],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "timeoutSeconds": 5,
                    "failurePolicy": failure_policy,
                }
            ],
        }

    async def _until_called(self) -> None:
        """The API server takes a moment to learn of a webhook, and another to learn of its bundle."""

        async def called() -> bool:
            with suppress(ApiError):
                await self.create("forbidden-probe")
                await delete(self.client, CONFIG_MAPS, "forbidden-probe", self.namespace)
            return bool(self.asked)

        await eventually(called, "a call of the webhook")

    async def create(self, name: str) -> Object:
        return await self.client.create(CONFIG_MAPS, config_map(self.namespace, name))


async def test_the_api_server_believes_the_bundle_that_was_written_and_gets_answers(
    plane: Plane, namespace: str
) -> None:
    webhook = Webhook(plane, namespace)
    async with webhook.open(SharedCertificate(webhook.client, namespace=namespace, hosts=HOSTS)):
        await webhook.create("allowed")
        with pytest.raises(ApiError, match="not this one") as refusal:
            await webhook.create("forbidden")
        assert refusal.value.code == 403
        # Somebody applies an older manifest: what callers verify by is put back.
        emptied = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        await webhook.client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, namespace, emptied)
        async for event in webhook.client.watch(VALIDATING_WEBHOOK_CONFIGURATIONS, name=namespace):
            if event.object["webhooks"][0]["clientConfig"].get("caBundle"):
                break


async def test_no_call_of_the_api_server_fails_while_the_authority_and_the_certificate_change(
    plane: Plane, namespace: str
) -> None:
    terms = Terms(overlap=dt.timedelta(seconds=3))
    # Two thirds of both are over in a few seconds: of the authority's time and of the certificate's.
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=8)
    old = renewed(None, hosts=HOSTS, terms=terms, now=soon - terms.authority * 2 / 3)
    old = renewed(old, hosts=HOSTS, terms=terms, now=soon - terms.server * 2 / 3)
    webhook = Webhook(plane, namespace)
    await seed(webhook.client, namespace, old)
    replica = SharedCertificate(webhook.client, namespace=namespace, hosts=HOSTS, terms=terms)
    calls: list[int] = []

    async def call(number: int) -> None:
        while calls.count(2) < 100:
            await webhook.create(f"one-{number}-{len(calls)}")
            calls.append(len(webhook.shown))

    async with webhook.open(replica):
        assert webhook.tls.pair == old.server
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(call(number))
        kept = await secret(webhook.client, namespace)
    told, signed = webhook.shown
    assert told == old.server, "a new authority is only told of at first"
    assert signed != old.server
    assert kept["ca.crt"].endswith(old.bundle)
    assert len(kept["ca.crt"]) > len(old.bundle)
    assert set(calls) == {0, 1, 2}, "there were calls before, in between and after"


async def test_a_server_that_is_busy_slows_the_api_server_down_and_fails_nothing(plane: Plane, namespace: str) -> None:
    webhook = Webhook(plane, namespace)
    async with webhook.open(SharedCertificate(webhook.client, namespace=namespace, hosts=HOSTS)):
        before = webhook.asked
        webhook.answers = [BUSY, BUSY]
        await webhook.create("allowed")
        assert webhook.asked == before + 3


@pytest.mark.parametrize(("failure_policy", "created"), [("Ignore", True), ("Fail", False)])
async def test_while_caches_are_not_synced_the_failure_policy_decides(
    plane: Plane, namespace: str, failure_policy: str, created: bool
) -> None:
    webhook = Webhook(plane, namespace)
    certificate = SharedCertificate(webhook.client, namespace=namespace, hosts=HOSTS)
    async with webhook.open(certificate, failure_policy=failure_policy):
        webhook.ready = False
        if created:
            await webhook.create("forbidden")
        else:
            with pytest.raises(ApiError, match="caches are not synced yet"):
                await webhook.create("allowed")
