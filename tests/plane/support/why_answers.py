"""`unwind why` for tests: the answer as a value, and its commands typed into a shell."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from tests.eventually import eventually
from tests.forked_commands import UNWIND
from tests.plane.support.objects import crd, define, new_object, until_allowed, until_refused
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from unwind.certificates import Authority
from unwind.clock import SYSTEM
from unwind.kube import discovery, object_watch
from unwind.local import tools
from unwind.members.members import Members
from unwind.protection.admission_policies import protection_policies
from unwind.why.answers import Effect
from unwind.why.diagnosis import why
from unwind.why.reachable_clusters import ReachableCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.why.answers import Answer, Remedy

_LONG = 90.0


class Asker:
    """Somebody who asks about one cluster, and types what they are told."""

    def __init__(self, cluster: LocalCluster, namespace: str = "default", *, kubeconfig: Path | None = None) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.namespace = namespace
        self._kubeconfig = kubeconfig or cluster.kubeconfig
        kubectl = tools.find_binary(tools.KUBECTL)
        assert kubectl, "make setup has it built where it is not on the PATH"
        self._path = f"{UNWIND.parent}:{os.environ['PATH']}:{kubectl.path.parent}"

    async def ask(self, text: str, *, namespace: str | None = None, client: Client | None = None) -> Answer:
        """The answer, as it is found out."""
        client = client or self.client
        async with Members(client) as fleet:
            place = ReachableCluster(client, fleet=fleet)
            named = await discovery.resolve(place.discovery, text, namespace=namespace or self.namespace)
            return await why(place, named, clock=SYSTEM)

    async def until(self, text: str, says: Callable[[Answer], bool], *, namespace: str | None = None) -> Answer:
        """Ask again and again until the answer is like that: what it is about is somebody else's to write."""
        last: list[Answer] = []

        async def answer() -> Answer | None:
            last[:] = [await self.ask(text, namespace=namespace)]
            return last[0] if says(last[0]) else None

        try:
            found = await eventually(answer, within=_LONG, every=0.2)
        except AssertionError:
            raise AssertionError(f"the last answer was {last}") from None
        assert found
        return found

    async def shell(self, *commands: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Type these, one after the other, until one fails."""
        variables = (
            os.environ | {"PATH": self._path, "KUBECONFIG": str(self._kubeconfig), "NO_COLOR": "1"} | (env or {})
        )
        with tempfile.TemporaryDirectory() as directory:
            return await asyncio.to_thread(
                lambda: subprocess.run(
                    ["bash", "-e", "-o", "pipefail", "-c", "\n".join(commands)],
                    cwd=directory,
                    env=variables,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
            )

    async def do(self, remedy: Remedy) -> None:
        """Do what the answer says, to the letter."""
        done = await self.shell(*remedy.commands)
        assert done.returncode == 0, done.stdout + done.stderr

    async def until_gone(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        where = (namespace or self.namespace) if resource.namespaced else None
        await object_watch.until_absent(self.client, resource, name, namespace=where, within=_LONG)

    async def until_deletable(self, resource: Resource, obj: Object) -> None:
        """Return when its deletion is not refused any more."""
        await until_allowed(lambda: self._try_delete(resource, obj), within=_LONG)

    async def until_refused(self, resource: Resource, obj: Object, words: str) -> None:
        """Return when its deletion is refused in these words."""
        await until_refused(lambda: self._try_delete(resource, obj), words, within=_LONG)

    async def _try_delete(self, resource: Resource, obj: Object) -> None:
        meta = obj["metadata"]
        await self.client.delete(resource, meta["name"], uid=meta["uid"], namespace=meta.get("namespace"), dry_run=True)

    async def make(self, resource: Resource, name: str, *, finalizers: list[str] | None = None, **more: Any) -> Object:
        """Create an object in our namespace."""
        body = new_object(resource, name, self.namespace if resource.namespaced else None, **more)
        if finalizers:
            body["metadata"]["finalizers"] = finalizers
        return await self.client.create(resource, body)

    async def delete(self, resource: Resource, obj: Object, *, propagation: str | None = None) -> None:
        meta = obj["metadata"]
        await self.client.delete(
            resource, meta["name"], uid=meta["uid"], namespace=meta.get("namespace"), propagation=propagation
        )

    async def define(self, group: str, **spec: Any) -> Resource:
        """A kind of our own, Gadget, as soon as it is served."""
        gadgets = Resource(group, "v1", "gadgets", "Gadget")
        await define(self.client, crd(gadgets, **spec))
        return gadgets

    async def keeping(self, name: str, message: str) -> None:
        """A policy that has every ConfigMap of this name kept."""
        rule = {"apiGroups": [""], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["configmaps"]}
        condition = {"name": "concerned", "expression": f"oldObject.metadata.name == '{name}'"}
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [condition],
            "validations": [{"expression": "false", "message": message, "reason": "Forbidden"}],
        }
        await self._policy(name, spec, {"validationActions": ["Deny"]})

    async def protect(self) -> None:
        """The policies of deletion protection, as Unwind installs them."""
        for policy in protection_policies():
            await self._policy(f"protect-{policy.name}", policy.spec, policy.binding)

    async def _policy(self, name: str, spec: Object, binding: Object) -> None:
        await self.make(VALIDATING_ADMISSION_POLICIES, name, spec=spec)
        await self.make(VALIDATING_ADMISSION_POLICY_BINDINGS, name, spec={"policyName": name, **binding})


async def protected_asker(cluster: LocalCluster) -> Asker:
    """An asker in the namespace `why`, once deletion protection is enforced there."""
    asker = Asker(cluster, "why")
    await cluster.create_namespace("why")
    await asker.protect()
    kept = await asker.make(CONFIG_MAPS, "probe", metadata={"labels": {DELETE_PROTECTION_LABEL: "Always"}})
    await asker.until_refused(CONFIG_MAPS, kept, DELETE_PROTECTION_LABEL)
    return asker


def forced(answer: Answer) -> Remedy:
    """The one that leaves something behind."""
    [remedy] = [remedy for remedy in answer.remedies if remedy.effect is Effect.LEAVES]
    return remedy


def safe(answer: Answer) -> Remedy:
    """The one that leaves nothing behind."""
    [remedy] = [remedy for remedy in answer.remedies if remedy.effect is Effect.SAFE]
    return remedy


def deleting(answer: Answer) -> Remedy:
    """The one that deletes something."""
    [remedy] = [remedy for remedy in answer.remedies if remedy.effect is Effect.DELETES]
    return remedy


def chain(answer: Answer) -> list[str]:
    """The objects of the chain, in order, by kind and name."""
    return [f"{item.object.kind}/{item.object.name}" for item in answer.chain]


@asynccontextmanager
async def denying(reason: str) -> AsyncIterator[Object]:
    """A webhook that denies everything: how it is called."""

    def answer(_: str, review: Object) -> Object:
        verdict = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": reason, "code": 403}}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": verdict}

    async with answering(answer) as way:
        yield way


@asynccontextmanager
async def answering(reply: Callable[[str, Object], Object]) -> AsyncIterator[Object]:
    """A server over HTTPS that answers each call by its path and its body: how it is called."""
    authority = Authority("answering")
    pair = authority.server("answering", hosts=["127.0.0.1"])

    async def answer(request: web.Request) -> web.Response:
        # Cluster API says nothing about what its body is.
        return web.json_response(reply(request.path, msgspec.json.decode(await request.read())))

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_context(pair.certificate, pair.key))
        await site.start()
        port = runner.addresses[0][1]
        yield {"url": f"https://127.0.0.1:{port}/", "caBundle": _base64(authority.certificate)}
    finally:
        await runner.cleanup()


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        for name, content in (("crt", certificate), ("key", key)):
            (Path(directory) / name).write_bytes(content)
        context.load_cert_chain(Path(directory) / "crt", Path(directory) / "key")
    return context


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
