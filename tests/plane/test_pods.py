"""Pods of our image run for real: as processes, from the files of the image, with the Pod's identity and status."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.real_pods import LABELS, manager_deployment, new_object, pod_template
from unwind.api.names import NAME_LABEL
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, PODS, SECRETS, SERVICES
from unwind.kube.object_watch import until, until_absent, until_true
from unwind.local.pods.agent import NODE_NAMES
from unwind.local.pods.services import ENDPOINT_SLICES
from unwind.server.manager_names import MANAGER
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.local.pods.agent import PodAgent

# The first build of the image downloads packages and compiles helm.
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image"),
]


class Workshop:
    """The Pods of one namespace."""

    def __init__(self, plane: Plane, agent: PodAgent, namespace: str) -> None:
        self.client = plane.management.client
        self.agent = agent
        self.namespace = namespace

    async def pods(self, labels: str = f"{NAME_LABEL}=unwind") -> list[Object]:
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
        spec = {"backoffLimit": 0, "template": pod_template({"name": "job", "args": list(args), **container}, "Never")}
        await self.client.create(JOBS, new_object(JOBS, name, self.namespace, spec))

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
    await client.create(SERVICES, new_object(SERVICES, "unwind-test", namespace, spec))
    await client.create(DEPLOYMENTS, new_object(DEPLOYMENTS, "unwind", namespace, manager_deployment("unwind:one")))

    first = await workshop.ready_pods(2, "unwind:one")
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in first} == {0}
    await eventually(lambda: _addresses(workshop, {pod["status"]["podIP"] for pod in first}), "the endpoints")
    answer = await client.raw(
        f"/api/v1/namespaces/{namespace}/services/unwind-test:metrics/proxy/healthz", accept="*/*"
    )
    assert answer == b"ok\n"

    change = {"spec": manager_deployment("registry.test/unwind:two")}
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


READ = """
import json, os, pathlib, socket
shown = {str(path): path.read_text() for path in map(pathlib.Path, os.environ["SHOW"].split(","))}
modes = {path: oct(os.stat(path).st_mode & 0o777) for path in shown}
print(json.dumps([shown, modes, os.environ["PREFIX_COLOUR"], "LATER" in os.environ]))
raise SystemExit(7)
"""


async def test_volumes_and_variables_come_from_secrets_config_maps_and_earlier_containers(workshop: Workshop) -> None:
    client, namespace = workshop.client, workshop.namespace
    secret = new_object(SECRETS, "key", namespace, {}) | {"stringData": {"key": "secret", "other": "hidden"}}
    settings = new_object(CONFIG_MAPS, "settings", namespace, {}) | {"data": {"COLOUR": "green"}}
    for resource, body in ((SECRETS, secret), (CONFIG_MAPS, settings)):
        del body["spec"]
        await client.create(resource, body)
    labels = {"path": "labels", "fieldRef": {"fieldPath": f"metadata.labels['{NAME_LABEL}']"}}
    volumes = [
        {
            "name": "key",
            "secret": {"secretName": "key", "defaultMode": 0o400, "items": [{"key": "key", "path": "a/key"}]},
        },
        {"name": "labels", "downwardAPI": {"items": [labels]}},
        {"name": "none", "configMap": {"name": "none", "optional": True}},
        {"name": "work", "emptyDir": {}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/mnt/{one['name']}"} for one in volumes]
    shown = ("/mnt/key/a/key", "/mnt/labels/labels", "/mnt/work/note")
    container = {
        "name": "reads",
        "command": ["/usr/bin/python3.11", "-c", READ],
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "PREFIX_"}],
        "env": [
            {"name": "SHOW", "value": ",".join(shown)},
            {"name": "LATER", "valueFrom": {"secretKeyRef": {"name": "none", "key": "none", "optional": True}}},
        ],
    }
    template = pod_template(container, "Never")
    writes = "import pathlib; pathlib.Path('/mnt/work/note').write_text('written')"
    first = {"name": "writes", "command": ["/usr/bin/python3.11", "-c", writes], "volumeMounts": mounts}
    template["spec"]["volumes"] = volumes
    template["spec"]["initContainers"] = [template["spec"]["containers"][0] | first]
    await client.create(PODS, new_object(PODS, "reads", namespace, template["spec"]))

    pod = await until(client, PODS, "reads", _has_ended, "ended", namespace=namespace)
    assert pod
    [written], [read] = pod["status"]["initContainerStatuses"], pod["status"]["containerStatuses"]
    assert written["state"]["terminated"]["exitCode"] == 0
    ended = read["state"]["terminated"]
    assert (pod["status"]["phase"], ended["exitCode"]) == ("Failed", 7)
    contents, modes, colour, later = json.loads(ended["message"])
    assert contents == dict(zip(shown, ("secret", "unwind", "written"), strict=True))
    assert modes["/mnt/key/a/key"] == "0o440"
    assert (colour, later) == ("green", False)


def _has_ended(pod: Object | None) -> bool:
    return ((pod or {}).get("status") or {}).get("phase") in ("Succeeded", "Failed")


async def test_a_container_that_is_not_alive_is_restarted_with_back_off(workshop: Workshop) -> None:
    container = {
        "name": "stuck",
        "command": ["/usr/bin/python3.11", "-c", "import time; time.sleep(3600)"],
        "livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1},
    }
    spec = pod_template(container, "Always")["spec"]
    await workshop.client.create(PODS, new_object(PODS, "stuck", workshop.namespace, spec))

    def backing_off(pod: Object | None) -> bool:
        [status] = ((pod or {}).get("status") or {}).get("containerStatuses") or [{}]
        return bool(status.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

    pod = await until(workshop.client, PODS, "stuck", backing_off, "in back-off", namespace=workshop.namespace)
    assert pod
    [status] = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGTERM


async def test_an_image_that_the_node_does_not_have_is_not_run(workshop: Workshop) -> None:
    template = pod_template({"name": "other", "image": "busybox"}, "Always")
    await workshop.client.create(PODS, new_object(PODS, "other", workshop.namespace, template["spec"]))

    async def waiting() -> bool:
        pod = await workshop.client.get(PODS, "other", namespace=workshop.namespace)
        [status] = pod.get("status", {}).get("containerStatuses") or [{}]
        return bool(status.get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull")

    await eventually(waiting, "the reason")


async def test_other_pods_are_still_simulated(workshop: Workshop) -> None:
    spec = {"containers": [{"name": "other", "image": "busybox"}]}
    await workshop.client.create(PODS, new_object(PODS, "simulated", workshop.namespace, spec))
    pod = await until_true(workshop.client, PODS, "simulated", "Ready", namespace=workshop.namespace)
    assert pod["spec"]["nodeName"] not in NODE_NAMES


async def _addresses(workshop: Workshop, wanted: set[str]) -> bool:
    slices = await workshop.client.list(ENDPOINT_SLICES, namespace=workshop.namespace)
    ends = [end for one in slices for end in one.get("endpoints") or ()]
    return {address for end in ends if end["conditions"]["ready"] for address in end["addresses"]} == wanted


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
