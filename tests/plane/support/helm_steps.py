"""Steps that deploy charts with the real Helm, for tests: the charts, and what a ClusterSummary would do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from tests.plane.support.objects import crd, define
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import OWNER_LABEL, Finalizer
from unwind.api.resources import NAMESPACES, Resource
from unwind.api.sveltos import DEFAULT_TIER
from unwind.api.unwind import INVENTORIES, Entry, EntryState, Inventory, InventorySpec, MemberRef
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import Waiting
from unwind.deleters.registry import DeleterRegistry
from unwind.deploy.helm_install import HOOK, Account, Deployed, Preview, install_or_upgrade, preview
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.helm import charts, release_secrets
from unwind.helm.charts import Chart
from unwind.helm.program import Helm, HelmError
from unwind.install.manifests import crds
from unwind.inventory.inventories import Inventories
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until
from unwind.local import build, tools
from unwind.members.member import Member
from unwind.removal.removal import Removal
from unwind.testing.charts import ChartRepository
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from tests.plane.support.helm_users import HelmUser
    from unwind.deleters.registration import External
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

_CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta1", kind="Cluster", namespace="default", name="helm")
WEB = """
    apiVersion: apps/v1
    kind: Deployment
    metadata:
      name: {{ .Release.Name }}-web
    spec:
      replicas: {{ .Values.replicas }}
      selector:
        matchLabels: {app: {{ .Release.Name }}}
      template:
        metadata:
          labels: {app: {{ .Release.Name }}}
        spec:
          containers: [{name: web, image: web}]
"""
SETTINGS = """
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: {{ .Release.Name }}-settings
    data:
      colour: {{ .Values.colour | quote }}
"""
SHARED = """
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: shared
"""
KEPT = """
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: {{ .Release.Name }}-kept
      annotations:
        helm.sh/resource-policy: keep
"""
FAREWELL = """
    apiVersion: batch/v1
    kind: Job
    metadata:
      name: {{ .Release.Name }}-farewell
      annotations:
        helm.sh/hook: pre-delete
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: farewell, image: farewell}]
"""
THINGS = Resource("helm.test", "v1", "things", "Thing")
THING = """
    apiVersion: helm.test/v1
    kind: Thing
    metadata:
      name: {{ .Release.Name }}-thing
      finalizers: [helm.test/operator]
"""
OWN = "own.helm.test"
MOVED = Resource("moved.helm.test", "v1", "moves", "Move")
"""Its CRD is a template of version 1.0.0 of the chart `moved`, and in `crds/` of version 2.0.0."""
OWN_NAMESPACE = """
    apiVersion: v1
    kind: Namespace
    metadata:
      name: {{ .Release.Namespace }}-inner
"""
GATE = """
    apiVersion: networking.k8s.io/v1
    kind: Ingress
    metadata:
      name: {{ .Release.Name }}-gate
      annotations:
        helm.sh/hook: pre-delete
    spec:
      defaultBackend: {service: {name: nobody, port: {number: 80}}}
"""
VALUES = "replicas: 1\ncolour: blue\n"


class Step:
    """What one ClusterSummary does: deploy charts, with an inventory, and have them removed."""

    def __init__(
        self,
        own: Client,
        member: Member,
        helm: Helm,
        repository: ChartRepository,
        namespace: str,
        inventory: Inventory,
        tier: int,
        former: frozenset[str] = frozenset(),
    ) -> None:
        self.member = member
        self.client = member.client
        self.namespace = namespace
        self.owner = inventory.spec.owner.uid
        self._deployer = DeploymentOwner(object=inventory.spec.owner, tier=tier, former=former)
        self.helm = helm
        self.releaser = HelmReleases(helm)
        self._repository = repository
        self._name = inventory.metadata.name
        self._inventories = Inventories(own, namespace=inventory.metadata.namespace)
        self.removal: Removal | None = None
        self.said: list[str] = []
        self.new = asyncio.Event()

    def chart(self, name: str, **more: Any) -> Chart:
        """A chart of the repository, released under its own name."""
        fields = {"version": "1.0.0", "release": name, "namespace": self.namespace, "repository": self._repository.url}
        return Chart(chart=name, **{**fields, **more})

    def start_anew(self) -> None:
        """As after a restart: nobody remembers anything."""
        self.helm = Helm(self.helm.program)
        self.releaser = HelmReleases(self.helm)

    async def entries(self) -> dict[str, Entry]:
        [chunk] = await self._inventories.of(self.owner)
        return chunk.spec.entries

    async def lose_inventory(self) -> None:
        """Delete the inventory, which another management cluster does not have."""
        await self._inventories.discard_all(await self._inventories.of(self.owner))

    async def states(self) -> dict[str, str]:
        return {str(entry.object): entry.state for entry in (await self.entries()).values()}

    async def mine(self) -> Mapping[str, Entry]:
        return await self.entries()

    async def theirs(self, owner: str) -> Account:
        chunks = await self._inventories.of(owner)
        return Account(f"step {owner}", {key: one for chunk in chunks for key, one in chunk.spec.entries.items()})

    async def record(self, changes: Mapping[str, Entry | None]) -> None:
        [chunk] = await self._inventories.of(self.owner)
        built = {key: None if one is None else msgspec.to_builtins(one) for key, one in changes.items()}
        await self._inventories.write(chunk, built)

    async def deploy(self, chart: Chart, *, external: External | None = None) -> Deployed:
        """`external`: an external end that is registered."""
        registry = DeleterRegistry([*BUILTIN, *([external] if external else [])])
        return await install_or_upgrade(
            self.helm, self.member, chart, owner=self._deployer, book=self, registry=registry
        )

    async def preview(self, chart: Chart) -> Preview:
        return await preview(self.helm, self.member, chart, owner=self._deployer, book=self)

    async def remove(self, **more: Any) -> Removal:
        """`more`: further arguments of `Removal`."""
        chunks = await self._inventories.sealed(self.owner, "teardown")
        self.removal = removal = Removal(
            self.member,
            self._inventories,
            chunks,
            deleters=BUILTIN,
            releases=self.releaser,
            changed=self._changed,
            clock=StillClock(),
            **more,
        )
        await removal.run()
        return removal

    def _changed(self) -> None:
        assert self.removal
        for wait in self.removal.progress.waits.values():
            words = wait.reason if isinstance(wait, Waiting) else wait.message
            if words not in self.said:
                # A test that runs out of time shows what its removal waited for.
                print(f"removal waits: {words}")
                self.said.append(words)
                self.new.set()

    async def until_said(self, part: str) -> str:
        async with asyncio.timeout(60):
            while True:
                for words in self.said:
                    if part in words:
                        return words
                self.new.clear()
                await self.new.wait()

    async def get(self, resource: Resource, name: str) -> Object | None:
        try:
            return await self.client.get(resource, name, namespace=self.namespace if resource.namespaced else None)
        except NotFoundError:
            return None

    async def releases(self, name: str) -> list[release_secrets.Revision]:
        return await release_secrets.history(self.client, namespace=self.namespace, release=name)


@asynccontextmanager
async def serving() -> AsyncIterator[ChartRepository]:
    """The charts of these tests, served."""
    async with ChartRepository() as served:
        base = {"values.yaml": VALUES, "templates/web.yaml": WEB, "templates/settings.yaml": SETTINGS}
        served.add("web", base)
        served.add("web", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS}, version="2.0.0")
        served.add("settings", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS})
        served.add("kept", {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/b.yaml": KEPT})
        served.add("farewell", {**base, "templates/farewell.yaml": FAREWELL})
        served.add("greeting", {**base, "templates/greeting.yaml": FAREWELL.replace("pre-delete", "pre-install")})
        served.add("things", {"crds/thing.yaml": yaml.dump(crd(THINGS)), "templates/thing.yaml": THING})
        last = FAREWELL.replace("pre-delete", "post-delete")
        held = SETTINGS.replace("-settings\n", "-settings\n      finalizers: [helm.test/hold]\n")
        served.add("last", {"values.yaml": VALUES, "templates/a.yaml": held, "templates/last.yaml": last})
        served.add("gate", {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/gate.yaml": GATE})
        served.add("moved", {"values.yaml": VALUES, "templates/crd.yaml": yaml.dump(crd(MOVED))})
        served.add(
            "moved",
            {"values.yaml": VALUES, "crds/crd.yaml": yaml.dump(crd(MOVED)), "templates/settings.yaml": SETTINGS},
            version="2.0.0",
        )
        served.add(
            "own",
            {
                "templates/namespace.yaml": OWN_NAMESPACE,
                "templates/crd.yaml": yaml.dump(crd(Resource(OWN, "v1", "things", "Thing"))),
            },
        )
        yield served


@asynccontextmanager
async def stepping(
    plane: Plane,
    namespace: str,
    repository: ChartRepository,
    *,
    charts: Path | None = None,
    tier: int = DEFAULT_TIER,
    beside: Step | None = None,
    former: frozenset[str] = frozenset(),
) -> AsyncIterator[Step]:
    """A step, with its inventory in this namespace. `beside`: it deploys to the same namespace as that one. `former`:
    the owners that it had in other management clusters."""
    client = plane.management.client
    for body in crds("unwind.dev"):
        await define(client, body)
    cluster = plane.members["member-1"]
    system_uid = await cluster.client.cluster_uid()
    program = (await build.ensure([tools.HELM]))["helm"].path
    target = f"helm-{uuid.uuid4().hex[:8]}"
    owner = ObjectRef(kind="ClusterSummary", namespace=namespace, name=target, uid=str(uuid.uuid4()))
    inventory = Inventory(
        metadata=ObjectMeta(
            name=f"{owner.uid}-0",
            namespace=namespace,
            labels={OWNER_LABEL: owner.uid},
            finalizers=(Finalizer.INVENTORY,),
        ),
        spec=InventorySpec(owner=owner, member=MemberRef(object=_CLUSTER, system_uid=system_uid)),
    )
    made = await client.create(INVENTORIES, manifest(INVENTORIES, inventory))
    async with (
        Member(_CLUSTER, cluster.client, system_uid=system_uid) as member,
        manager_client(client, namespace) as own,
    ):
        helm = Helm(program, charts=charts)
        where = beside.namespace if beside else target
        yield Step(own, member, helm, repository, where, msgspec.convert(made, Inventory), tier, former)
    # So that the namespace can go.
    inventories = Inventories(client, namespace=namespace)
    for chunk in await inventories.of(owner.uid):
        await inventories.discard(chunk)


QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


async def make_namespace(step: Step) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": step.namespace}}
    await step.client.create(NAMESPACES, body)


async def no_pods(where: Step | HelmUser) -> Object:
    """Have no more Pods created, so that a hook does not come to its end."""
    metadata = {"name": "none", "namespace": where.namespace}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "0"}}}
    await where.client.create(QUOTAS, body)
    made = await until(
        where.client,
        QUOTAS,
        "none",
        lambda it: bool(it and (it.get("status") or {}).get("hard")),
        "in force",
        namespace=where.namespace,
    )
    assert made
    return made


def entry_of_release(step: Step, name: str) -> Entry:
    ref = ObjectRef(version="v1", kind="Secret", namespace=step.namespace, name=f"sh.helm.release.v1.{name}.v1")
    source = charts.source(step.namespace, name) + HOOK
    return Entry(object=ref, resource="secrets", state=EntryState.INTENDED.value, source=source)


def secret_of(revision: release_secrets.Revision, body: Object) -> Object:
    packed = base64.b64encode(base64.b64encode(gzip.compress(msgspec.json.encode(body)))).decode()
    name = f"sh.helm.release.v1.{body['name']}.v{body['version']}"
    labels = revision.secret["metadata"]["labels"] | {"status": body["info"]["status"], "version": str(body["version"])}
    metadata = {"name": name, "namespace": revision.secret["metadata"]["namespace"], "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": revision.secret["type"],
        "metadata": metadata,
        "data": {"release": packed},
    }


async def dying(deploying: Coroutine[object, object, object]) -> None:
    with pytest.raises(HelmError):
        await deploying


def helm_processes() -> list[int]:
    """The Helms that we have started and that run."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "helm"]


def kill_helm() -> None:
    [pid] = helm_processes()
    os.kill(pid, signal.SIGKILL)
