"""Pods of our image run for real: as processes, from the files of the image, with the Pod's identity and status."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.eventually import eventually
from unwind.api.resources import DEPLOYMENTS, JOBS, PODS, SERVICES, Resource
from unwind.kube.object_watch import until_absent, until_true
from unwind.local.pods.agent import NODE_NAMES, NODE_SELECTOR, TOLERATIONS, PodAgent
from unwind.server.manager_names import MANAGER
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from image.build import Image
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

# The first build of the image downloads packages and compiles helm.
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image"),
]
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LABELS = {"app": "unwind"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agent(plane: Plane, image: Image) -> AsyncIterator[PodAgent]:
    async with PodAgent(plane.management, {"unwind": image.archive}) as agent:
        yield agent


class Workshop:
    """The Pods of one namespace."""

    def __init__(self, plane: Plane, agent: PodAgent, namespace: str) -> None:
        self.client = plane.management.client
        self.agent = agent
        self.namespace = namespace

    async def pods(self, labels: str = "app=unwind") -> list[Object]:
        return await self.client.list(PODS, namespace=self.namespace, labels=labels)

    async def ready_pods(self, count: int, image: str = "") -> list[Object]:
        """The Pods, when so many of them are ready, and no others exist."""

        async def ready() -> list[Object]:
            pods = await self.pods()
            wanted = [pod for pod in pods if _is_ready(pod) and image in pod["spec"]["containers"][0]["image"]]
            return wanted if len(wanted) == count == len(pods) else []

        return await eventually(ready, f"{count} ready Pods", within=120)

    async def job(self, name: str, *args: str, **container: Any) -> Object:
        """Run a Job of our image, and return its Pod when the Job has ended."""
        spec = {"backoffLimit": 0, "template": _template({"name": "job", "args": list(args), **container}, "Never")}
        await self.client.create(JOBS, _object(JOBS, name, self.namespace, spec))

        async def ended() -> bool:
            status = (await self.client.get(JOBS, name, namespace=self.namespace)).get("status", {})
            return any(one["type"] in ("Complete", "Failed") for one in status.get("conditions") or ())

        await eventually(ended, f"the end of Job {name}")
        [pod] = await self.pods(f"job-name={name}")
        return pod


@pytest_asyncio.fixture(loop_scope="session")
async def workshop(plane: Plane, agent: PodAgent, namespace: str) -> AsyncIterator[Workshop]:
    workshop = Workshop(plane, agent, namespace)
    yield workshop
    # Managers end before their rights: a request that is refused fails the session.
    for deployment in await workshop.client.list(DEPLOYMENTS, namespace=namespace):
        meta = deployment["metadata"]
        await workshop.client.delete(DEPLOYMENTS, meta["name"], uid=meta["uid"], namespace=namespace)
    await eventually(lambda: _no_managers(workshop), "the end of all managers")


async def _no_managers(workshop: Workshop) -> bool:
    return not [pod for pod in await workshop.pods() if pod["spec"].get("serviceAccountName") == MANAGER]


async def test_replicas_of_the_manager_run_and_are_replaced_by_an_update(workshop: Workshop) -> None:
    client, namespace = workshop.client, workshop.namespace
    await manager_connection(client, namespace)
    spec = {"selector": LABELS, "ports": [{"name": "metrics", "port": 80, "targetPort": "metrics"}]}
    await client.create(SERVICES, _object(SERVICES, "unwind-test", namespace, spec))
    await client.create(DEPLOYMENTS, _object(DEPLOYMENTS, "unwind", namespace, _manager("unwind:one")))

    first = await workshop.ready_pods(2, "unwind:one")
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in first} == {0}
    await eventually(lambda: _addresses(workshop, {pod["status"]["podIP"] for pod in first}), "the endpoints")
    answer = await client.raw(
        f"/api/v1/namespaces/{namespace}/services/unwind-test:metrics/proxy/healthz", accept="*/*"
    )
    assert answer == b"ok\n"

    change = {"spec": _manager("registry.test/unwind:two")}
    await client.patch(DEPLOYMENTS, "unwind", change, namespace=namespace)
    second = await workshop.ready_pods(2, "unwind:two")
    assert {pod["metadata"]["uid"] for pod in first}.isdisjoint(pod["metadata"]["uid"] for pod in second)

    # A process that is killed is started again, and the status says how it ended.
    killed = second[0]
    process = workshop.agent.runner(killed).containers[0].process
    assert process
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)

    async def restarted() -> Object:
        pod = await client.get(PODS, killed["metadata"]["name"], namespace=namespace)
        return pod if _is_ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 1 else {}

    [status] = (await eventually(restarted, "a restarted container"))["status"]["containerStatuses"]
    ended = status["lastState"]["terminated"]
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")

    # A deleted Pod gets SIGTERM, ends in peace, and is gone.
    log = workshop.agent.runner(second[1]).containers[0].log
    deleted = second[1]["metadata"]
    await client.delete(PODS, deleted["name"], uid=deleted["uid"], namespace=namespace)
    await until_absent(client, PODS, deleted["name"], namespace=namespace)
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


async def test_a_job_runs_unwind_to_its_end(workshop: Workshop) -> None:
    pod = await workshop.job("version", "version")
    assert pod["status"]["phase"] == "Succeeded"
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")


async def test_a_job_that_fails_shows_its_last_lines_as_termination_message(workshop: Workshop) -> None:
    pod = await workshop.job("fails", "run", "--listen", "nowhere", terminationMessagePolicy="FallbackToLogsOnError")
    assert pod["status"]["phase"] == "Failed"
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 2
    assert "invalid --listen" in ended["message"]


LOOK = """
import json, os, pathlib, socket
account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
def writable(path):
    try:
        pathlib.Path(path, "x").write_text("x")
    except OSError:
        return False
    return True
found = {
    "user": os.getuid(),
    "host": socket.gethostname(),
    "namespace": (account / "namespace").read_text(),
    "files": sorted(path.name for path in account.iterdir() if not path.name.startswith(".")),
    "writable": [path for path in ("/", "/tmp", "/etc", str(account)) if writable(path)],
    "name": os.environ["NAME"],
    "greeting": os.environ["GREETING"],
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
}
pathlib.Path("/dev/termination-log").write_text(json.dumps(found))
"""


async def test_a_container_has_the_identity_of_its_pod_and_no_rights_on_the_machine(workshop: Workshop) -> None:
    named = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    pod = await workshop.job(
        "look",
        "-c",
        LOOK,
        command=["/usr/bin/python3.11"],
        env=[named, {"name": "GREETING", "value": "hello $(NAME)"}],
    )
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 0, ended
    name = pod["metadata"]["name"]
    assert json.loads(ended["message"]) == {
        "user": 65532,
        "host": name,
        "namespace": workshop.namespace,
        "files": ["ca.crt", "namespace", "token"],
        "writable": ["/tmp"],
        "name": name,
        "greeting": f"hello {name}",
        "processes": 2,
        "capabilities": ["0000000000000000"],
    }


async def test_an_image_that_the_node_does_not_have_is_not_run(workshop: Workshop) -> None:
    template = _template({"name": "other", "image": "busybox"}, "Always")
    await workshop.client.create(PODS, _object(PODS, "other", workshop.namespace, template["spec"]))

    async def waiting() -> bool:
        pod = await workshop.client.get(PODS, "other", namespace=workshop.namespace)
        [status] = pod.get("status", {}).get("containerStatuses") or [{}]
        return bool(status.get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull")

    await eventually(waiting, "the reason")


async def test_other_pods_are_still_simulated(workshop: Workshop) -> None:
    spec = {"containers": [{"name": "other", "image": "busybox"}]}
    await workshop.client.create(PODS, _object(PODS, "simulated", workshop.namespace, spec))
    pod = await until_true(workshop.client, PODS, "simulated", "Ready", namespace=workshop.namespace)
    assert pod["spec"]["nodeName"] not in NODE_NAMES


async def _addresses(workshop: Workshop, wanted: set[str]) -> bool:
    slices = await workshop.client.list(ENDPOINT_SLICES, namespace=workshop.namespace)
    ends = [end for one in slices for end in one.get("endpoints") or ()]
    return {address for end in ends if end["conditions"]["ready"] for address in end["addresses"]} == wanted


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _object(resource: Resource, name: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def _template(container: Object, policy: str) -> Object:
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    spec = {
        "restartPolicy": policy,
        "nodeSelector": NODE_SELECTOR,
        "tolerations": TOLERATIONS,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "containers": [{"image": "unwind", "securityContext": security, "volumeMounts": mounts, **container}],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
    }
    return {"metadata": {"labels": LABELS}, "spec": spec}


def _manager(image: str) -> Object:
    def probe(path: str) -> Object:
        return {"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": 1, "timeoutSeconds": 5}

    fields = {"POD_IP": "status.podIP", "UNWIND_NAMESPACE": "metadata.namespace"}
    env: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    # All Pods have the network of the machine: each listens on its own address.
    env += [
        {"name": "UNWIND_LISTEN", "value": "$(POD_IP):9443"},
        {"name": "UNWIND_METRICS_LISTEN", "value": "$(POD_IP):8080"},
    ]
    container = {
        "name": "manager",
        "image": image,
        "env": env,
        "ports": [{"name": "https", "containerPort": 9443}, {"name": "metrics", "containerPort": 8080}],
        "startupProbe": probe("/healthz") | {"failureThreshold": 60},
        "readinessProbe": probe("/readyz"),
        "livenessProbe": probe("/healthz"),
    }
    template = _template(container, "Always")
    template["spec"]["serviceAccountName"] = MANAGER
    return {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template}
