"""An uninstall by Unwind sends what `helm uninstall` sends, in the same order: seen side by side with the real Helm."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.helm_steps import SETTINGS, VALUES, WEB
from tests.plane.support.helm_users import HelmUser, helm_program
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, JOBS, PODS
from unwind.api.unwind import Entry, EntryState
from unwind.deploy.helm_hooks import HookFailedError
from unwind.deploy.helm_install import HOOK, parts_of
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.helm import charts, release_secrets
from unwind.helm.release_secrets import HOOK_MANAGER
from unwind.kube.object_watch import until
from unwind.members.member import Member

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

_CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta1", kind="Cluster", namespace="default", name="hooks")


def _template(resource: Resource, spec: str = "") -> str:
    return f"""
    apiVersion: {resource.api_version}
    kind: {resource.kind}
    metadata:
      name: {{{{ .Release.Name }}}}-NAME
      annotations: {{helm.sh/hook: "EVENT", helm.sh/hook-weight: "WEIGHT", helm.sh/hook-delete-policy: "POLICY"}}
{spec}"""


JOB = _template(JOBS, "    spec: {template: {spec: {restartPolicy: Never, containers: [{name: job, image: job}]}}}\n")
MAP = _template(CONFIG_MAPS)
POD = _template(PODS, "    spec: {nodeSelector: {no: node}, containers: [{name: pod, image: pod}]}\n")


def hook(template: str, name: str, event: str, weight: int, policy: str = "") -> str:
    text = template.replace("NAME", name).replace("EVENT", event).replace("WEIGHT", str(weight))
    return text.replace("POLICY", policy) if policy else text.replace(', helm.sh/hook-delete-policy: "POLICY"', "")


class Grounds:
    """A release `db` in a namespace of its own."""

    def __init__(self, plane: Plane, repository: ChartRepository, user: HelmUser, member: Member) -> None:
        self.user = user
        self.client = user.client
        self.namespace = user.namespace
        self._member = member
        self._audit = plane.members["member-1"].audit
        self._before = 0

    async def install(self, chart: str) -> None:
        await self.user.install("db", chart, "--create-namespace")
        self._before = len(self._sent())

    def _sent(self) -> list[tuple[str, str, str]]:
        entries = self._audit.entries(verbs=("create", "delete"), namespace=self.namespace)
        # Controllers are not compared.
        ours = [it for it in entries if it.code < 300 and it.user_agent.startswith(("Helm/", "unwind"))]
        return [(it.verb, it.object_ref.resource, it.object_ref.name) for it in ours]

    def sent(self) -> list[tuple[str, str, str]]:
        """What has been created and deleted since the installation."""
        return self._sent()[self._before :]

    def uids(self) -> list[str]:
        """The preconditions of Unwind's DELETEs."""
        entries = self._audit.entries(verbs=("delete",), namespace=self.namespace)
        return [it.uid for it in entries if it.user_agent.startswith("unwind")]

    async def uninstall(self) -> None:
        """As Unwind does."""
        release = ObjectRef(group="helm.sh", version="v1", kind="Release", namespace=self.namespace, name="db")
        await HelmReleases(await helm_program()).uninstall(
            self._member, release, owner="", entries=await self._entries(), has_a_say=_nobody
        )

    async def _entries(self) -> list[Entry]:
        [last] = await release_secrets.history(self.client, namespace=self.namespace, release="db")
        manifests = release_secrets.release_manifests(last.release)
        found: list[Entry] = []
        for part in await parts_of(self._member, manifests, namespace=self.namespace):
            uid, hook = "", part.manifest.hook
            if not hook:  # a hook of the uninstall is recorded before it exists
                there = await self.client.get(part.resource, part.manifest.name, namespace=self.namespace)
                uid = there["metadata"]["uid"]
            found.append(
                Entry(
                    object=msgspec.structs.replace(part.ref, uid=uid),
                    resource=part.resource.plural,
                    state=(EntryState.INTENDED if hook else EntryState.CONFIRMED).value,
                    source=charts.source(self.namespace, "db") + (HOOK if hook else ""),
                )
            )
        return found

    async def fail_pod(self, name: str) -> None:
        """End a Pod that no node takes, as soon as it is there."""
        await until(self.client, PODS, name, bool, "there", namespace=self.namespace)
        status = {"status": {"phase": "Failed", "message": "no luck"}}
        await self.client.patch(PODS, name, status, namespace=self.namespace, subresource="status")


async def _nobody(resource: Resource, obj: Object) -> bool:
    del resource, obj
    return False


@pytest.fixture
async def both(plane: Plane, repository: ChartRepository) -> AsyncIterator[tuple[Grounds, Grounds]]:
    """For Helm, and for Unwind."""
    cluster = plane.members["member-1"]
    program = (await helm_program()).program
    async with Member(_CLUSTER, cluster.client, system_uid=await cluster.client.cluster_uid()) as member:
        users = [HelmUser(cluster, f"hooks-{uuid.uuid4().hex[:8]}", program, repository) for _ in range(2)]
        helm, unwind = (Grounds(plane, repository, user, member) for user in users)
        yield helm, unwind


async def test_hooks_and_objects_go_in_the_order_of_helm(
    both: tuple[Grounds, Grounds], repository: ChartRepository
) -> None:
    hooks = [
        hook(MAP, "z-early", "pre-delete", -5, "hook-succeeded"),
        hook(JOB, "a-late", "pre-delete", 10, "before-hook-creation,hook-succeeded"),
        hook(MAP, "middle", "pre-delete,post-delete", 0),
        hook(JOB, "a-middle", "pre-delete", 0, "hook-failed"),
        hook(MAP, "last", "post-delete", 1, "hook-succeeded"),
        hook(MAP, "elsewhere", "post-install", 0),
    ]
    files = {f"templates/{number}.yaml": text for number, text in enumerate([WEB, SETTINGS, *hooks])}
    repository.add("hooked", {"values.yaml": VALUES, **files})
    for it in both:
        await it.install("hooked")
    helm, unwind = both
    await helm.user.uninstall("db")
    await unwind.uninstall()
    assert unwind.sent() == helm.sent()
    assert ("create", "jobs", "db-a-late") in unwind.sent()
    assert all(unwind.uids()), "every DELETE names a uid"
    [left] = await unwind.client.list(JOBS, namespace=unwind.namespace)
    assert left["metadata"]["name"] == "db-a-middle"
    assert {field["manager"] for field in left["metadata"]["managedFields"]} >= {HOOK_MANAGER}
    assert await unwind.user.secrets("db") == []


@pytest.mark.parametrize("event", ["pre-delete", "post-delete"])
async def test_after_a_failed_hook_the_same_is_left_as_with_helm(
    both: tuple[Grounds, Grounds], repository: ChartRepository, event: str
) -> None:
    hooks = [
        hook(MAP, "first", event, -1, "hook-succeeded"),
        hook(POD, "fails", event, 0, "hook-failed"),
        hook(MAP, "never", event, 1),
    ]
    files = {f"templates/{number}.yaml": text for number, text in enumerate([SETTINGS, *hooks])}
    chart = f"failing-{event}"
    repository.add(chart, {"values.yaml": VALUES, **files})
    helm, unwind = both
    for it in both:
        await it.install(chart)
    async with asyncio.TaskGroup() as group:
        group.create_task(helm.fail_pod("db-fails"))
        with pytest.raises(subprocess.CalledProcessError) as stopped:
            await helm.user.uninstall("db")
        assert "pod db-fails failed" in stopped.value.stderr
    async with asyncio.TaskGroup() as group:
        group.create_task(unwind.fail_pod("db-fails"))
        with pytest.raises(HookFailedError, match=r"its hook Pod .*/db-fails failed: no luck"):
            await unwind.uninstall()
    assert unwind.sent() == helm.sent()
    for it in both:
        left = {item["metadata"]["name"] for item in await it.client.list(CONFIG_MAPS, namespace=it.namespace)}
        assert left - {"kube-root-ca.crt"} == ({"db-settings"} if event == "pre-delete" else set())
        secrets = await it.user.secrets("db")
        assert [secret["metadata"]["labels"]["status"] for secret in secrets] == (
            ["uninstalling"] if event == "pre-delete" else []
        )
