"""Runs the helm program: with credentials in memory only, limited concurrency, and terminated with this process."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec
import yaml

from unwind.api.names import CHART_INPUTS_LABEL, CHART_TIER_LABEL, CHART_UNINSTALL_LABEL, OWNER_LABEL, REPLICA_LABEL
from unwind.api.sveltos import DEFAULT_TIER
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import Pace, TransientError
from unwind.errors import UnwindError
from unwind.helm.release_secrets import rendered_manifests
from unwind.kube import fencing, kubeconfig
from unwind.kube.auth import Credentials
from unwind.kube.kubeconfig import Token
from unwind.subprocesses import die_with_parent, until_child_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from datetime import datetime

    from unwind.clock import Clock
    from unwind.helm.charts import Chart
    from unwind.helm.release_secrets import ChartManifest
    from unwind.kube.kubeconfig import ClusterConnection

AT_ONCE = 2
"""How many Helm processes may run at a time: each takes about 100 MB and a core."""
# Helm's timeout applies to each hook and each wait; this limit is for a Helm that hangs.
_OPERATIONS = 4
_START = 60.0
# On SIGTERM, Helm marks its release as failed, which is better than pending forever.
_GRACE = 5.0
# The environment variables that it inherits. No others: no kubeconfig of this process, and no settings of a user's
# Helm.
_ENVIRONMENT = (
    "PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_PASSWORD = re.compile(r"://[^/\s@]*@")
_LONGEST = 600
_WORDS = 200


class HelmError(TransientError):
    """A Helm command failed; `what` contains its message on one line."""


class Helm:
    """Runs Helm against members."""

    def __init__(self, program: Path, *, charts: Path | None = None, replica: str = "", clock: Clock = SYSTEM) -> None:
        """`charts`: the directory for charts with a `file://` URL; without it, such charts are rejected. `replica`: the
        name of this process, for the label of releases that it works on."""
        self.program = program
        self.replica = replica
        self.clock = clock
        self.since = clock.now()
        """Helm commands that started earlier do not run in this process."""
        self._charts = charts.resolve() if charts else None
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._broken_off: set[tuple[str, str, str]] = set()

    async def render(
        self, connection: ClusterConnection, chart: Chart, *, upgrade: bool, version: str, served: Iterable[str]
    ) -> list[ChartManifest]:
        """The objects that an install or upgrade would create on a member of this version that serves these groups and
        kinds (`apps/v1`, `apps/v1/Deployment`). Changes nothing.

        This is no dry run of the install: that fails for kinds whose CRDs are in the chart itself.
        """
        more = ["--dry-run=server", "--include-crds", f"--kube-version={version}"]
        # In several arguments: Linux limits one argument to 128 KB.
        words = list(served)
        more += [f"--api-versions={','.join(words[at : at + _WORDS])}" for at in range(0, len(words), _WORDS)]
        more += ["--is-upgrade"] if upgrade else []
        output = await self._deploy("template", connection, chart, more)
        return await asyncio.to_thread(lambda: rendered_manifests(output.decode()))

    async def upgrade(
        self, connection: ClusterConnection, chart: Chart, *, owner: str, tier: int = DEFAULT_TIER
    ) -> None:
        """Install or upgrade the release, and return when Helm has ended. `owner`, `tier`: labels of its Secret."""
        options = chart.options
        labels = {
            **dict(options.labels),
            OWNER_LABEL: owner,
            CHART_TIER_LABEL: str(tier),
            CHART_INPUTS_LABEL: chart.inputs,
            CHART_UNINSTALL_LABEL: options.uninstalling,
            **({REPLICA_LABEL: self.replica} if self.replica else {}),
        }
        marks = ",".join(f"{key}={value}" for key, value in labels.items())
        # The output contains the values and is not read.
        more = ["--install", *options.flags, f"--labels={marks}", "--output=json"]
        try:
            await self._deploy("upgrade", connection, chart, more)
        except BaseException:
            self._broken_off.add((connection.server, chart.namespace, chart.release))
            raise
        self._broken_off.discard((connection.server, chart.namespace, chart.release))

    def at_work(
        self, connection: ClusterConnection, chart: Chart, began: datetime | None, *, replica: str = ""
    ) -> bool:
        """Whether a Helm process may still work on a release that was started then. A process of this manager ends with
        it, or is known to have ended; a user's own Helm ends after its timeout. `replica`: the replica in the label of
        the release. The Helm of another replica ends when that loses the shard, which this replica owns now."""
        if replica and replica != self.replica:
            return fencing.unsettled() > 0
        if (
            began is None
            or began < self.since
            or (connection.server, chart.namespace, chart.release) in self._broken_off
        ):
            return False
        return (self.clock.now() - began).total_seconds() < chart.options.timeout

    async def look(self, chart: Chart, *, within: float) -> None:
        """Return if the chart exists in that version; raise HelmError if not. Contacts no member."""
        located = self._located(chart.chart)
        async with _placed("", ()) as place:
            await self._run("show chart", _origin(chart), [located], place, within=within)

    async def _deploy(self, command: str, connection: ClusterConnection, chart: Chart, more: Sequence[str]) -> bytes:
        options = chart.options
        argv = [f"--namespace={chart.namespace}", f"--timeout={options.timeout:.0f}s", *options.rendering, *more]
        argv += _origin(chart)
        names = [chart.release, self._located(chart.chart)]
        async with self._place(connection, values=chart.values) as place:
            argv += [f"--values={_path(value)}" for value in place.values]
            return await self._run(command, argv, names, place, within=_OPERATIONS * options.timeout + _START)

    def _located(self, chart: str) -> str:
        """The location of a chart. A profile may not name arbitrary directories of this machine: its author is not
        trusted with them."""
        if not chart.startswith("file://"):
            return chart
        path = Path(unquote(urlsplit(chart).path)).resolve()
        if self._charts is None or not path.is_relative_to(self._charts):
            raise UnwindError(
                f"cannot use chart {chart}: it is outside of the charts directory",
                remedy="use a repository or an OCI reference",
            )
        return str(path)

    async def _run(
        self, command: str, argv: Sequence[str], names: Sequence[str], place: _Place, *, within: float
    ) -> bytes:
        """`names`: user input, such as a release or a chart. It is never interpreted as an option."""
        argv = [*command.split(), *argv, f"--kubeconfig={_path(place.kubeconfig)}", "--", *names]
        async with self._slots:
            # Not with asyncio's subprocess functions: if they are cancelled during the start, they kill the program but
            # not its children, and wait forever for the end of its output (observed).
            fencing.check_fence()
            process = _spawn([str(self.program), *argv], place)
            try:
                async with asyncio.timeout(within), fencing.scope():
                    await until_child_ended(process.pid)
            except TimeoutError:
                raise HelmError(
                    f"helm {command} of {names[0]} timed out after {within:.0f}s",
                    remedy="will retry; check its hooks and Pods, or raise options.timeout of the chart",
                ) from None
            finally:
                await _end(process)
        if process.returncode:
            message = complained(_read(place.complaint).decode(errors="replace"))
            # Failures of hooks and charts are rarely fixed within seconds.
            raise HelmError(
                f"helm {command} of {names[0]} failed: {message}",
                pace=Pace.SLOW,
                remedy="will retry; correct the chart, its values or its objects",
            )
        return await asyncio.to_thread(_read, place.output)

    @asynccontextmanager
    async def _place(self, connection: ClusterConnection, *, values: Sequence[str] = ()) -> AsyncIterator[_Place]:
        async with _placed(await _kubeconfig(connection), values) as place:
            yield place


@asynccontextmanager
async def _placed(document: str, values: Sequence[str]) -> AsyncIterator[_Place]:
    place = await asyncio.to_thread(_Place, document, values)
    try:
        yield place
    finally:
        await asyncio.to_thread(place.close)


class _Place:
    """The files of one run; nothing of it stays.

    Credentials, values and output are in memory only: a directory would stay if this process is killed.
    """

    def __init__(self, document: str, values: Sequence[str]) -> None:
        self.files: list[int] = []
        self.directory = Path(tempfile.mkdtemp(prefix="unwind-helm-"))  # 0700, for Helm's caches
        try:
            self.kubeconfig = self._file("kubeconfig", document)
            self.values = [self._file(f"values-{number}.yaml", text) for number, text in enumerate(values)]
            self.output, self.complaint = self._file("output"), self._file("complaint")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _file(self, name: str, text: str = "") -> int:
        file = os.memfd_create(f"unwind-helm-{name}", os.MFD_CLOEXEC)
        self.files.append(file)
        data = memoryview(text.encode())
        while data:
            data = data[os.write(file, data) :]
        return file


def _path(file: int) -> str:
    """The path of an inherited file descriptor. Each open reads it from the beginning."""
    return f"/proc/self/fd/{file}"


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def complained(text: str) -> str:
    """Helm's error message on one line, without passwords."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line.startswith("Error:")]
    if told and told[0].endswith(":"):
        told[0] += " " + ", ".join(line.removeprefix("* ") for line in lines if line.startswith("* "))
    words = told[:1] or [line for line in lines if line][-1:]
    line = "".join(words).removeprefix("Error:").strip() or "no error message"
    line = _PASSWORD.sub("://", " ".join(line.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


async def _kubeconfig(connection: ClusterConnection) -> str:
    proof = await Credentials(connection).proof()
    scheme, _, token = (proof.authorization or "").partition(" ")
    if scheme not in ("", "Bearer"):
        raise UnwindError(
            f"cannot run helm against {connection.server}: basic authentication is not supported", remedy="use a token"
        )
    connection = msgspec.structs.replace(
        connection,
        credential=Token(token) if token else None,
        certificate=proof.certificate or connection.certificate,
        key=proof.key or connection.key,
    )
    config = yaml.load(kubeconfig.document(connection, cluster="member", user="unwind"), Loader=yaml.CSafeLoader)
    if connection.impersonate:
        config["users"][0]["user"]["as"] = connection.impersonate
    return yaml.dump(config, Dumper=yaml.CSafeDumper)


def _origin(chart: Chart) -> list[str]:
    repository = [f"--repo={chart.repository}"] if chart.repository else []
    return [*repository, *([f"--version={chart.version}"] if chart.version else [])]


def _spawn(argv: Sequence[str], place: _Place) -> subprocess.Popen[bytes]:
    directory = place.directory
    known = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
    homes = {f"HELM_{name}_HOME": str(directory / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    try:
        return subprocess.Popen(
            argv,
            # Its discovery caches are under HOME: they would be stale after the next CRD.
            env={**known, **homes, "HOME": str(directory), "HELM_DRIVER": "secret"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=place.output,
            stderr=place.complaint,
            pass_fds=(place.kubeconfig, *place.values),
            # Its own process group, so that its children are terminated with it.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - only calls prctl, which takes no lock
        )
    except OSError as error:
        remedy = (
            "install Helm 3" if isinstance(error, FileNotFoundError) else f"check that {argv[0]} can be executed here"
        )
        raise UnwindError(f"cannot run helm: {error.strerror}", remedy=remedy) from error


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the program and its children, and reap it."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await until_child_ended(process.pid)
    finally:
        # Also if this is cancelled again. The program is not reaped yet, so its process group id is not reused.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # it has ended, or was just killed
