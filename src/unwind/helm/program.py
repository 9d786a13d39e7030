"""Helm, run as the program it is: with credentials of its own that no disk sees, bounded, and ended with us."""

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
from unwind.helm.releases import rendered
from unwind.kube import fencing, kubeconfig
from unwind.kube.credentials import Credentials
from unwind.kube.kubeconfig import Token
from unwind.subprocesses import die_with_parent, until_child_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from datetime import datetime

    from unwind.clock import Clock
    from unwind.helm.charts import Chart
    from unwind.helm.releases import ChartManifest
    from unwind.kube.kubeconfig import ClusterConnection

AT_ONCE = 2
"""How many may run in one process: each takes about 100 MB and a core."""
# An operation's timeout is for each hook and each wait of its own; this is for when Helm itself hangs.
_OPERATIONS = 4
_START = 60.0
# Told to end, Helm writes down that its release failed, which is better than one that is pending for ever.
_GRACE = 5.0
# What it may know of where it runs. Nothing else: neither a kubeconfig of ours, nor settings for somebody's own Helm.
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
    """Helm did not do it; `what` is what it said, on one line."""


class Helm:
    """Runs Helm against members."""

    def __init__(self, program: Path, *, charts: Path | None = None, replica: str = "", clock: Clock = SYSTEM) -> None:
        """`charts`: where charts that are named by a `file://` URL may be; without it, nowhere. `replica`: what this
        process is called; releases that it works on name it."""
        self.program = program
        self.replica = replica
        self.clock = clock
        self.since = clock.now()
        """Whatever was begun before, nobody here is at it any more."""
        self._charts = charts.resolve() if charts else None
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._broken_off: set[tuple[str, str, str]] = set()

    async def render(
        self, connection: ClusterConnection, chart: Chart, *, upgrade: bool, version: str, served: Iterable[str]
    ) -> list[ChartManifest]:
        """What an installation, or an upgrade, would bring to a member of this version that serves these groups and
        kinds (`apps/v1`, `apps/v1/Deployment`). Nothing is changed.

        Not by a dry run: that asks the API server for kinds whose CRDs the chart itself has yet to bring.
        """
        more = ["--dry-run=server", "--include-crds", f"--kube-version={version}"]
        # Not all in one: Linux takes no argument of more than 128 KB.
        words = list(served)
        more += [f"--api-versions={','.join(words[at : at + _WORDS])}" for at in range(0, len(words), _WORDS)]
        more += ["--is-upgrade"] if upgrade else []
        output = await self._deploy("template", connection, chart, more)
        return await asyncio.to_thread(lambda: rendered(output.decode()))

    async def upgrade(
        self, connection: ClusterConnection, chart: Chart, *, owner: str, tier: int = DEFAULT_TIER
    ) -> None:
        """Install or upgrade the release, and return when Helm is done. `owner`, `tier`: the marks on its Secret."""
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
        # Its output has the values in it, and is not looked at.
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
        """Whether somebody may still be at a release that was begun then. Ours end with us, or are known to have ended;
        somebody's own Helm ends when its time is over. `replica`: the one of ours that the release names. Another's
        Helm ends when it loses the shard, which is ours now."""
        if replica and replica != self.replica:
            return fencing.unsettled() > 0
        if (
            began is None
            or began < self.since
            or (connection.server, chart.namespace, chart.release) in self._broken_off
        ):
            return False
        return (self.clock.now() - began).total_seconds() < chart.options.timeout

    async def uninstall(
        self,
        connection: ClusterConnection,
        *,
        namespace: str,
        release: str,
        patience: float,
        wait: bool,
        hooks: bool = True,
        cascade: str = "foreground",
    ) -> None:
        """Have Helm delete what is in the release's last revision, run its hooks, and forget it. Gone before: fine.

        `patience`: seconds for any single operation. `wait`: until all is gone, before its last hooks run.
        """
        argv = [f"--namespace={namespace}", f"--cascade={cascade}", "--ignore-not-found"]
        argv += [f"--timeout={patience:.0f}s", *(["--wait"] if wait else []), *([] if hooks else ["--no-hooks"])]
        # Only so does it say which object could not be deleted. There is nothing secret in what it says here.
        argv.append("--debug")
        async with self._place(connection) as place:
            await self._run("uninstall", argv, [release], place, within=_OPERATIONS * patience + _START)

    async def look(self, chart: Chart, *, within: float) -> None:
        """Return if the chart is where it should be, in that version; raise HelmError if not. No member is asked."""
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
        """Where a chart is. A profile may not name any directory of this machine: who writes it is somebody else."""
        if not chart.startswith("file://"):
            return chart
        path = Path(unquote(urlsplit(chart).path)).resolve()
        if self._charts is None or not path.is_relative_to(self._charts):
            raise UnwindError(f"{chart} is not where charts may be", remedy="use a repository, or an OCI reference")
        return str(path)

    async def _run(
        self, command: str, argv: Sequence[str], names: Sequence[str], place: _Place, *, within: float
    ) -> bytes:
        """`names`: what others have chosen: a release, a chart. None of it is ever taken for an option."""
        argv = [*command.split(), *argv, f"--kubeconfig={_path(place.kubeconfig)}", "--", *names]
        async with self._slots:
            # At once and not by asyncio's own means: cancelled while it starts, those end the program and not what it
            # has started meanwhile, and wait for ever for the end of its output (seen).
            fencing.check()
            process = _spawn([str(self.program), *argv], place)
            try:
                async with asyncio.timeout(within), fencing.scope():
                    await until_child_ended(process.pid)
            except TimeoutError:
                raise HelmError(f"helm {command} of {names[0]} did not end within {within:.0f} s") from None
            finally:
                await _end(process)
        if process.returncode:
            told = complained(_read(place.complaint).decode(errors="replace"))
            # Hooks and charts do not come right by the second.
            raise HelmError(f"helm {command} of {names[0]} failed: {told}", pace=Pace.SLOW)
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
    """All that one run needs; nothing of it stays.

    Credentials, values and output are in memory only: a directory would stay where this process is killed.
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
    """Where the program finds a file that it has inherited. Each time it is opened, it is read from its beginning."""
    return f"/proc/self/fd/{file}"


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def complained(text: str) -> str:
    """What Helm said of a failure, on one line and without passwords."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line.startswith("Error:")]
    if told and told[0].endswith(":"):
        told[0] += " " + ", ".join(line.removeprefix("* ") for line in lines if line.startswith("* "))
    # With --debug each failure comes with where it was in Helm's sources; the details stand in lines of their own.
    detail = [line.partition("Failed to delete release: ")[2] for line in lines if "Failed to delete release: " in line]
    words = told[:1] + detail[:1] if told else [line for line in lines if line][-1:]
    line = "; ".join(word.removeprefix("Error:").strip() for word in words) or "it did not say why"
    line = _PASSWORD.sub("://", " ".join(line.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


async def _kubeconfig(connection: ClusterConnection) -> str:
    proof = await Credentials(connection).proof()
    scheme, _, token = (proof.authorization or "").partition(" ")
    if scheme not in ("", "Bearer"):
        raise UnwindError(f"Helm cannot be given a password for {connection.server}", remedy="use a token")
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
            # Its caches of what the member serves are under HOME: they would be stale after the next CRD.
            env={**known, **homes, "HOME": str(directory), "HELM_DRIVER": "secret"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=place.output,
            stderr=place.complaint,
            pass_fds=(place.kubeconfig, *place.values),
            # A group of its own, so that what it starts is ended with it.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls prctl, which takes no lock
        )
    except OSError as error:
        raise UnwindError(f"Helm cannot be run ({error.strerror})", remedy="install it") from error


async def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program, and all that it started, whether it has ended by itself or not; collect it."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await until_child_ended(process.pid)
    finally:
        # Also when this is cancelled once more. The program is not collected yet, so that its group is its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # it has ended, or was killed a moment ago
