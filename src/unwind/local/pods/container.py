"""One container of a Pod: started, probed, restarted with back-off, and stopped."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, UnreachableError
from unwind.local.pods import probes
from unwind.local.pods.sandbox import ContainerProcess, Mount, Sandbox
from unwind.local.pods.volumes import expand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from unwind.kube.client import Object
    from unwind.local.pods.images import Image
    from unwind.local.pods.volumes import PodSources

# The first restart follows at once, as with the kubelet. The later ones are sooner than there.
_BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_STEADY = 60.0
_RETRY = 0.5
_POLL = 0.02
_MESSAGE_BYTES = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80


class Container:
    """A container and the state that the Pod's status shows."""

    def __init__(
        self,
        spec: Object,
        pod: Object,
        *,
        directory: Path,
        find_image: Callable[[str], Image | None],
        sources: PodSources,
        variables: dict[str, str],
        changed: Callable[[], None],
        restarts: int = 0,
    ) -> None:
        self.spec = spec
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last: Object = {}
        self.ready = self.started = False
        self.restarts = restarts
        self.process: ContainerProcess | None = None
        self.log = directory / f"{spec['name']}.log"
        self._pod = pod
        self._directory = directory
        self._find_image = find_image
        self._image: Image | None = None
        self._sources = sources
        self._variables = variables
        self._changed = changed
        self._stopping = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None

    async def run(self, policy: str, mounts: Callable[[], Awaitable[list[Mount]]]) -> int:
        """Run it until its restart policy ends it, or until it is stopped; returns the last exit code."""
        code, row = 0, 0
        loop = asyncio.get_running_loop()
        while sandbox := await self._prepared(mounts):
            began = loop.time()
            code = await self._run_once(sandbox)
            if policy == "Never" or (policy == "OnFailure" and code == 0) or self._stopping.is_set():
                break
            row = 0 if loop.time() - began > _STEADY else row
            self.last = self.state
            if delay := _BACKOFF[min(row, len(_BACKOFF) - 1)]:
                text = f"back-off {delay:.0f}s restarting failed container {self.spec['name']}"
                self._set({"waiting": {"reason": "CrashLoopBackOff", "message": text}})
                await self._pause(delay)
            row += 1
            self.restarts += 1
        return code

    async def stop(self, grace: float) -> None:
        """End it: preStop, SIGTERM, and SIGKILL after the grace period."""
        self._stopping.set()
        await self._end(grace)

    async def _end(self, grace: float) -> None:
        process = self.process
        if not process:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                if pause := self.spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds"):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._gone(process), pause)
                while self.process is process and process.pid is None:  # noqa: ASYNC110 - it is being prepared
                    await asyncio.sleep(_POLL)
                process.send(signal.SIGTERM)
                await self._gone(process)
        if self.process is process:
            process.kill()

    async def _gone(self, process: ContainerProcess) -> None:
        while self.process is process:  # noqa: ASYNC110 - two tasks may wait, and one reaps
            await asyncio.sleep(_POLL)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _prepared(self, mounts: Callable[[], Awaitable[list[Mount]]]) -> Sandbox | None:
        """What to run. Retried until everything that the Pod refers to exists; None if it is stopped before."""
        while not self._stopping.is_set():
            self._image = self._find_image(self.spec["image"])
            if not self._image:
                waiting = {"reason": "ErrImageNeverPull", "message": f"this node has no image {self.spec['image']}"}
                self._set({"waiting": waiting})
            else:
                try:
                    return await self._sandbox(self._image, await mounts())
                except (UnwindError, ApiError, UnreachableError) as error:
                    self._set({"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
            await self._pause(_RETRY)
        return None

    async def _sandbox(self, image: Image, mounts: list[Mount]) -> Sandbox:
        spec = self.spec
        pod_security = self._pod["spec"].get("securityContext") or {}
        security = pod_security | (spec.get("securityContext") or {})
        user, group = security.get("runAsUser", image.user), security.get("runAsGroup", image.group)
        if security.get("runAsNonRoot") and not user:
            raise UnwindError("container has runAsNonRoot and image will run as root")
        hostname = self._pod["spec"].get("hostname") or self._pod["metadata"]["name"]
        start = image.environment | self._variables | {"HOSTNAME": hostname}
        environment = await self._sources.environment(spec, start)
        command, args = spec.get("command"), spec.get("args")
        argv = [*(command or image.entrypoint), *(args or ([] if command else image.command))]
        groups = [*(pod_security.get("supplementalGroups") or ()), *filter(None, [pod_security.get("fsGroup")])]
        message = self._message_file
        message.write_bytes(b"")
        message.chmod(0o666)
        return Sandbox(
            image=image,
            argv=[expand(word, environment) for word in argv],
            environment=environment,
            mounts=[*mounts, Mount(message, self._message_path, read_only=False)],
            hostname=hostname,
            user=user,
            group=group,
            groups=groups,
            read_only=security.get("readOnlyRootFilesystem", False),
        )

    async def _run_once(self, sandbox: Sandbox) -> int:
        name = self.spec["name"]
        self.process = ContainerProcess(sandbox, directory=self._directory / f"{name}.root", log=self.log)
        began = now()
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self._set({"running": {"startedAt": began}})
        probing = asyncio.create_task(self._probe(), name=f"probe {name}")
        try:
            code = await self.process.ended()
        except asyncio.CancelledError:
            self.process.kill()
            await self.process.ended()
            raise
        finally:
            probing.cancel()
            await asyncio.wait([probing])
        self.process = None
        self.ready = self.started = False
        ended: Object = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": began,
            "finishedAt": now(),
            "containerID": self.container_id,
        }
        if code > 128:
            ended["signal"] = code - 128
        if message := self._message(code):
            ended["message"] = message
        self._set({"terminated": ended})
        return code

    async def _probe(self) -> None:
        ip = self._sources.field("status.podIP")
        spec = self.spec
        if startup := spec.get("startupProbe"):
            begun = asyncio.Event()
            following = asyncio.create_task(
                probes.run_probe(startup, spec, ip, lambda well: begun.set() if well else self._unhealthy())
            )
            try:
                await begun.wait()
            finally:
                following.cancel()
            self.started = True
            self.ready = "readinessProbe" not in spec
            self._changed()
        async with asyncio.TaskGroup() as group:
            if readiness := spec.get("readinessProbe"):
                group.create_task(probes.run_probe(readiness, spec, ip, self._set_ready))
            if liveness := spec.get("livenessProbe"):
                group.create_task(
                    probes.run_probe(liveness, spec, ip, lambda well: None if well else self._unhealthy())
                )

    def _set_ready(self, ready: bool) -> None:
        if self.ready != ready:
            self.ready = ready
            self._changed()

    def _unhealthy(self) -> None:
        """A liveness or startup probe failed: end the container; its policy says whether it is started again."""
        grace = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        self._ending = asyncio.ensure_future(self._end(grace))

    def _message(self, code: int) -> str:
        text = self._message_file.read_bytes()[-_MESSAGE_BYTES:]
        if not text and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            lines = self.log.read_bytes()[-_LOG_BYTES:].splitlines()
            text = b"\n".join(lines[-_LOG_LINES:])
        return text.decode(errors="replace")

    @property
    def container_id(self) -> str:
        return f"process://{self._pod['metadata']['uid']}-{self.spec['name']}-{self.restarts}"

    @property
    def _message_file(self) -> Path:
        return self._directory / f"{self.spec['name']}.message"

    @property
    def _message_path(self) -> str:
        path: str = self.spec.get("terminationMessagePath", "/dev/termination-log")
        return path

    def status(self) -> Object:
        """Its entry in the Pod's status."""
        return {
            "name": self.spec["name"],
            "image": self.spec["image"],
            "imageID": self._image.digest if self._image else "",
            "containerID": self.container_id if "waiting" not in self.state else "",
            "state": self.state,
            "lastState": self.last,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }

    def _set(self, state: Object) -> None:
        if self.state != state:
            self.state = state
            self._changed()


def now() -> str:
    """The time, as the API has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
