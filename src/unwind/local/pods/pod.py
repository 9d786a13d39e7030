"""One Pod of the node: its volumes, containers and status."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.resources import PODS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.local.pods.container import Container, now
from unwind.local.pods.sandbox import Mount
from unwind.local.pods.volumes import PodSources, token_lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.local.pods.images import Image

log = logs.get(__name__)

_RETRY = 0.2
# The kubelet renews a mounted token when four fifths of its time are over.
_RENEWED_AFTER = 0.8
_RENEWAL_RETRY = 10.0


class PodRunner:
    """Runs a Pod until it is deleted, and writes its status."""

    def __init__(
        self,
        client: Client,
        pod: Object,
        *,
        directory: Path,
        find_image: Callable[[str], Image | None],
        variables: dict[str, str],
        hosts: Path,
        ip: str,
        host_ip: str,
        clock: Clock = SYSTEM,
    ) -> None:
        self.pod = pod
        """The Pod as it was last seen."""
        self.ip = ip
        self.directory = directory
        self._client = client
        self._hosts = hosts
        self._host_ip = host_ip
        self._clock = clock
        self._since = now()
        self._phase = "Pending"
        self._changed = asyncio.Event()
        self._deleted = asyncio.Event()
        self._gone = False
        self._sources = PodSources(client, pod, ip=ip, host_ip=host_ip)
        before = {status["name"]: status.get("restartCount", 0) for status in _statuses(pod)}
        directory.mkdir(parents=True, exist_ok=True)

        def container(spec: Object) -> Container:
            return Container(
                spec,
                pod,
                directory=directory,
                find_image=find_image,
                sources=self._sources,
                variables=variables,
                changed=self._changed.set,
                restarts=before.get(spec["name"], 0),
            )

        self.initial = [container(spec) for spec in pod["spec"].get("initContainers") or ()]
        self.containers = [container(spec) for spec in pod["spec"]["containers"]]

    def see(self, pod: Object) -> None:
        """Take a newer state of the Pod."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._deleted.set()

    def gone(self) -> None:
        """The Pod does not exist any more."""
        self._gone = True
        self._deleted.set()

    async def run(self) -> None:
        """Return when the Pod is gone."""
        reporting = asyncio.create_task(self._keep_status(), name="status")
        renewing = asyncio.create_task(self._renew_tokens(), name="tokens")
        working = asyncio.create_task(self._work(), name="containers")
        deleted = asyncio.create_task(self._deleted.wait(), name="deletion")
        self.see(self.pod)
        try:
            await asyncio.wait([deleted, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()  # raises if it failed, which is a bug
            await deleted
            metadata = self.pod["metadata"]
            grace = 0 if self._gone else metadata.get("deletionGracePeriodSeconds", 30)
            await asyncio.gather(*(container.stop(grace) for container in (*self.initial, *self.containers)))
            await working
        finally:
            for task in (working, deleted, renewing, reporting):
                task.cancel()
                await asyncio.wait([task])
            await asyncio.to_thread(self._clean)
        await self._finish()

    async def _work(self) -> None:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        for container in self.initial:
            code = await container.run("OnFailure" if policy == "Always" else policy, self._mounts_of(container))
            if code or self._deleted.is_set():
                self._end("Failed")
                return
        self._phase = "Running"
        codes = await asyncio.gather(
            *(container.run(policy, self._mounts_of(container)) for container in self.containers)
        )
        if policy != "Always" or self._deleted.is_set():
            self._end("Failed" if any(codes) else "Succeeded")

    def _end(self, phase: str) -> None:
        self._phase = phase
        self._changed.set()

    def _mounts_of(self, container: Container) -> Callable[[], asyncio.Future[list[Mount]]]:
        return lambda: asyncio.ensure_future(self._mounts(container))

    async def _mounts(self, container: Container) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in self.pod["spec"].get("volumes") or ()}
        mounts = [Mount(self._hosts, "/etc/hosts"), Mount(self._resolver(), "/etc/resolv.conf")]
        for mount in container.spec.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            source = await self._write(volume)
            if source and mount.get("subPath"):
                source /= mount["subPath"]
            read_only = mount.get("readOnly", False) or "emptyDir" not in volume
            mounts.append(Mount(source, mount["mountPath"], read_only=read_only))
        return mounts

    async def _write(self, volume: Object) -> Path | None:
        group = (self.pod["spec"].get("securityContext") or {}).get("fsGroup")
        return await self._sources.write(volume, self.directory / "volumes", group=group)

    async def _renew_tokens(self) -> None:
        """Write mounted tokens again before they expire, until cancelled."""
        volumes = [volume for volume in self.pod["spec"].get("volumes") or () if token_lifetime(volume)]
        if not volumes:
            return
        usual = min(token_lifetime(volume) or 0 for volume in volumes) * _RENEWED_AFTER
        wait = usual
        while True:
            await self._clock.sleep(wait)
            wait = usual
            for volume in volumes:
                if (self.directory / "volumes" / volume["name"]).exists():
                    try:
                        await self._write(volume)
                    except UnwindError as error:
                        pod = self.pod["metadata"]["name"]
                        log.warning("mounted token not renewed, will retry", pod=pod, why=str(error))
                        wait = _RENEWAL_RETRY

    def _resolver(self) -> Path:
        path = self.directory / "resolv.conf"
        path.write_text("")
        return path

    # Status

    async def _keep_status(self) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._report():
                self._changed.set()
                await asyncio.sleep(_RETRY)

    async def _report(self) -> bool:
        """Write the status; False if it must be retried."""
        metadata = self.pod["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "status": self.status()}
        try:
            await self._client.patch(
                PODS, metadata["name"], patch, namespace=metadata["namespace"], subresource="status"
            )
        except (NotFoundError, ConflictError):
            return True  # the watch says so, too
        except (ApiError, UnreachableError) as error:
            log.warning("status not written, will retry", pod=metadata["name"], why=str(error))
            return False
        return True

    def status(self) -> Object:
        running = self._phase == "Running"
        initialized = self._phase != "Pending" or not self.initial
        ready = running and all(container.ready for container in self.containers)
        ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(self._phase, "ContainersNotReady")
        wanted = {
            "PodReadyToStartContainers": (True, ""),
            "Initialized": (initialized, "" if initialized else "ContainersNotInitialized"),
            "ContainersReady": (ready, "" if ready else ended),
            "Ready": (ready, "" if ready else ended),
        }
        return {
            "phase": self._phase,
            "conditions": _conditions(self.pod, wanted),
            "containerStatuses": [container.status() for container in self.containers],
            "initContainerStatuses": [container.status() for container in self.initial],
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "hostIP": self._host_ip,
            "hostIPs": [{"ip": self._host_ip}],
            "startTime": self._since,
        }

    async def _finish(self) -> None:
        """Write the last status, and confirm the deletion of the Pod."""
        metadata = self.pod["metadata"]
        reported = False
        while not self._gone:
            try:
                reported = reported or await self._report()
                if reported:
                    # The Pod has ended: without a grace period the API server removes it now.
                    await self._client.delete(
                        PODS, metadata["name"], uid=metadata["uid"], namespace=metadata["namespace"], grace=0
                    )
                    return
            except (NotFoundError, ConflictError):
                return
            except (ApiError, UnreachableError):
                pass
            await asyncio.sleep(_RETRY)

    def _clean(self) -> None:
        """Remove its files. The logs stay until the node is gone."""
        shutil.rmtree(self.directory / "volumes", ignore_errors=True)
        for root in self.directory.glob("*.root"):
            shutil.rmtree(root, ignore_errors=True)


def _statuses(pod: Object) -> Iterable[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _conditions(pod: Object, wanted: dict[str, tuple[bool, str]]) -> list[Object]:
    """The conditions of the Pod, with ours. The time of a condition changes with its status only."""
    before = {condition["type"]: condition for condition in (pod.get("status") or {}).get("conditions") or ()}
    conditions = [one for kind, one in before.items() if kind not in wanted]
    for kind, (holds, reason) in wanted.items():
        status = "True" if holds else "False"
        same = before.get(kind, {}).get("status") == status
        condition = {"type": kind, "status": status}
        condition["lastTransitionTime"] = before[kind]["lastTransitionTime"] if same else now()
        if reason:
            condition["reason"] = reason
        conditions.append(condition)
    return conditions
