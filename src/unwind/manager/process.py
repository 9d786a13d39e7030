"""The manager process of `unwind run`: startup, components and graceful shutdown."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import uuid
from concurrent.futures import Future
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import uvloop
from cryptography import x509
from prometheus_client import Gauge

from unwind import logs
from unwind.api.features import ALL, Features, written
from unwind.api.names import MANAGER_USER_AGENT
from unwind.certificates import KeyPair
from unwind.components import Role
from unwind.concurrency import to_tell, unless
from unwind.errors import UnwindError
from unwind.install import conflicting_controllers
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.errors import ForbiddenError
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.kube.shards import Shards
from unwind.manager import garbage_collection, health, wiring
from unwind.manager.context import ManagerContext, ManagerOptions
from unwind.manager.garbage_collection import GarbageCollection
from unwind.manager.health import new_registry
from unwind.manager.watchdog import Watchdog
from unwind.plugins import error_message
from unwind.server.authorization import TokenAuthorizer
from unwind.server.ca_bundles import CABundleController
from unwind.server.certificate_secret import SharedCertificate
from unwind.server.listener import Address, Limits, Listener, RequestMetrics, address_of, bind
from unwind.server.manager_names import REGISTRATION, SERVICE, recorded_features
from unwind.server.path_keys import SharedPathKeys
from unwind.server.path_segments import Segments
from unwind.server.reachability import Answering
from unwind.server.reachability import route as answering_route
from unwind.server.tls import CertificateFiles, Tls, WatchedFiles, read_files
from unwind.teardown.archive_directory import ArchiveDirectory, ArchiveError, ArchiveOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from unwind.components import Component, Components
    from unwind.server.routes import CABundleTarget

log = logs.get(__name__)

Wire: TypeAlias = "Callable[[ManagerContext], Sequence[Components]]"

# Few requests are expected here (probes, scrapes), so the limits are low.
_ARCHIVE_CHECK = 10.0
_METRICS_LIMITS = Limits(connections=64, under_way=8, idle_seconds=60.0)


def run_process(options: ManagerOptions) -> None:
    """Run on an event loop that plugin code cannot end. Raises UnwindError for invalid configuration.

    A SystemExit or KeyboardInterrupt in any task or callback leaves the loop. The loop is only stopped: the task or its
    parent gets the exception as well, and everything else continues when the loop is run again.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        work = loop.create_task(run(options))
        while True:
            try:
                loop.run_until_complete(work)
            except (SystemExit, KeyboardInterrupt) as error:
                if work.done() or not _signals_handled():
                    raise
                log.exception(
                    "plugin tried to end the process",
                    error=error_message(error),
                    remedy="fix or uninstall the plugin that the traceback names",
                )
            else:
                return


def _signals_handled() -> bool:
    """Whether the loop handles signals. Until then, KeyboardInterrupt comes from Ctrl-C."""
    return signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL)


async def run(options: ManagerOptions, *, wire: Wire = wiring.components) -> None:
    """Run until a signal stops it. Raises UnwindError for invalid configuration."""
    stopping = _Stopping()
    garbage_collection.tune()
    try:
        async with AsyncExitStack() as stack:
            process = _Process(options, stack)
            if await unless(stopping.asked, process.start(wire)):
                await process.work(stopping)
    except ExceptionGroup as failures:
        raise to_tell(failures) from None
    log.info("stopped")


class _Stopping:
    """Set by SIGTERM or SIGINT; the second signal stops at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.now if self.asked.is_set() else self.asked).set()


class _Process:
    def __init__(self, options: ManagerOptions, stack: AsyncExitStack) -> None:
        self._options = options
        self._stack = stack
        self._registry = new_registry()
        self._requests = RequestMetrics()
        self._registry.register(self._requests)
        self._readiness = health.Readiness()
        self._watchdog = Watchdog()
        self._parts: list[Component] = [self._watchdog, GarbageCollection()]
        self._shared: list[AbstractAsyncContextManager[object]] = []
        self._https: Listener | None = None
        self._segments = Segments()

    async def start(self, wire: Wire) -> None:
        """Start listening. Nothing is logged before the configuration was checked."""
        options = self._options
        connection = await asyncio.to_thread(kubeconfig.load, options.kubeconfig, context=options.context)
        serves, controls = Role.SERVING in options.roles, Role.CONTROLLERS in options.roles
        if controls and options.archive:
            await _check_archive(options.archive)
        probed = self._take(options.metrics_listen, "--metrics-listen")
        called = self._take(options.listen, "--listen") if serves else None

        observed = Metrics(self._registry)
        # Leases use their own client: queued behind thousands of requests, a renewal would be late.
        client, for_leases = [
            await self._stack.enter_async_context(
                Client(connection, user_agent=MANAGER_USER_AGENT, observe=observed.called)
            )
            for _ in range(2)
        ]
        version = msgspec.json.decode(await client.raw("/version"), type=_Version)
        features = options.features
        if features is None:
            features = await _recorded_features(client, options.namespace)
        if controls:
            await _refuse_rivals(client, features)
        identity = _identity()
        shards = Shards(
            for_leases,
            namespace=options.namespace,
            identity=identity,
            version=version_of("kube-unwind"),
            # From the downward API.
            pod_uid=os.environ.get("POD_UID", ""),
            troubled=_log_lease_failed,
        )
        Gauge("unwind_shards_owned", "Shards that this replica owns.", registry=self._registry).set_function(
            lambda: len(shards.owned)
        )
        recorder = Recorder(client, instance=identity)
        answering = Answering(
            client,
            lambda: not self._readiness.missing,
            self._segments,
            namespace=options.namespace if options.check_service else "",
        )
        context = ManagerContext(
            options,
            client=client,
            features=features,
            registry=self._registry,
            metrics=observed,
            shards=shards,
            recorder=recorder,
            notification_ca=await _authorities(options.notification_ca),
            segments=self._segments,
            answering=answering,
        )
        # Before they are used for registrations and routes.
        path_keys = SharedPathKeys(client, self._segments, namespace=options.namespace)
        await path_keys.obtain()
        shares = wire(context)
        parts: list[Component] = [recorder, path_keys, answering]
        parts += [shards, *(part for share in shares for part in share.controllers)] if controls else []
        parts += [part for share in shares for part in share.serving] if serves else []
        self._shared += [item for share in shares for item in share.shared]
        self._parts += dict.fromkeys(parts)  # a cache may be used by both roles, and runs once
        targets = [target for share in shares for target in share.ca_bundle_targets]
        tls = await self._secure(client, targets) if serves or options.secure_metrics else None

        log.info(
            "started",
            server=connection.server,
            version=version.git_version,
            roles=",".join(options.roles),
            features=written(features),
        )
        self._readiness.add(self._parts)
        probes = health.routes(
            self._readiness,
            self._registry,
            dead=lambda: self._watchdog.failure,
            authorizer=TokenAuthorizer(client) if options.secure_metrics else None,
        )
        metrics_tls = tls if options.secure_metrics else None
        metrics = Listener("metrics", probes, tls=metrics_tls, limits=_METRICS_LIMITS, requests=self._requests)
        await self._open(metrics, probed)
        if called is not None:
            routes = [route for share in shares for route in share.routes] + [answering_route()]
            self._https = Listener("https", routes, tls=tls, requests=self._requests, segments=self._segments)
            await self._open(self._https, called)
        self._readiness.started = True

    async def work(self, stopping: _Stopping) -> None:
        """Run all components until a signal arrives. Shards are released last, so that the next owner can rely on
        nothing running here any more."""
        leases = [part for part in self._parts if isinstance(part, Shards)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part.run(), name=part.name) for part in leases]
            await self._work([part for part in self._parts if not isinstance(part, Shards)], stopping)
            for part in leases:
                part.drained = True
            for task in tasks:
                task.cancel()

    async def _work(self, parts: Sequence[Component], stopping: _Stopping) -> None:
        """Run components on what they share. At a signal, finish requests in flight, then stop the components, and then
        close what they share; also if a component fails."""
        grace = self._options.shutdown_grace
        async with AsyncExitStack() as shared, asyncio.TaskGroup() as group:
            for item in self._shared:
                await shared.enter_async_context(item)
            tasks = [group.create_task(part.run(), name=part.name) for part in parts]
            await stopping.asked.wait()
            self._readiness.stopping = True
            log.info("stopping", grace=grace)
            if self._https and not await unless(stopping.now, self._https.close(grace=grace)):
                self._https.abort()
            for task in tasks:
                task.cancel()

    async def _secure(self, client: Client, ca_bundle_targets: Sequence[CABundleTarget]) -> Tls:
        """Load or create the serving certificate, and keep it renewed."""
        callers, watched = None, []
        bundles = CABundleController(client, ca_bundle_targets, self._segments)
        self._parts.append(bundles)
        if path := self._options.client_ca:
            [callers] = await asyncio.to_thread(read_files, [path], option="--client-ca")
            try:
                x509.load_pem_x509_certificates(callers)
            except ValueError as error:
                raise UnwindError(
                    f"cannot use {path}: it contains no certificate", remedy="check --client-ca"
                ) from error
            watched.append(WatchedFiles("--client-ca", (path,), lambda contents: tls.admit(contents[0])))
        if self._options.tls_cert and self._options.tls_key:
            paths = (self._options.tls_cert, self._options.tls_key)
            pair = KeyPair(*await asyncio.to_thread(read_files, paths, option="--tls-cert and --tls-key"))
            watched.append(
                WatchedFiles("--tls-cert and --tls-key", paths, lambda contents: tls.show(KeyPair(*contents)))
            )
        else:
            shared = SharedCertificate(client, namespace=self._options.namespace, hosts=_hosts(self._options))
            pair, bundle = await shared.obtain()
            bundles.use(bundle)

            async def use(pair: KeyPair, bundle: bytes) -> None:
                bundles.use(bundle)
                await tls.show(pair)

            shared.then(use)
            self._parts.append(shared)
        try:
            tls = await asyncio.to_thread(Tls, pair, callers=callers)
        except ValueError as error:
            raise UnwindError(f"cannot serve HTTPS: {error}", remedy="check --tls-cert and --tls-key") from error
        if watched:
            self._parts.append(CertificateFiles(watched))
        _show_expiry(self._registry, tls)
        return tls

    def _take(self, address: Address, option: str) -> socket.socket:
        listening = bind(address, option=option)
        self._stack.callback(listening.close)
        return listening

    async def _open(self, listener: Listener, listening: socket.socket) -> None:
        await listener.open(listening)
        self._requests.watch(listener)
        self._stack.push_async_callback(listener.close, grace=0.5)
        log.info("listening", listener=listener.name, address=str(address_of(listening)))


async def _check_archive(path: Path) -> None:
    """Raise UnwindError if the archive cannot be used. If it only cannot be used now, the manager starts: gates are
    more important, and documents are written later."""
    checked: Future[None] = Future()
    checked.set_running_or_notify_cancel()

    def check() -> None:
        try:
            ArchiveDirectory(path).check()
            checked.set_result(None)
        except ArchiveError as error:
            checked.set_exception(error)

    # Not in a thread of the loop's pool: one that hangs would be waited for at the end.
    threading.Thread(target=check, name="archive check", daemon=True).start()
    try:
        async with asyncio.timeout(_ARCHIVE_CHECK):
            await asyncio.wrap_future(checked)
    except ArchiveOptionError:
        raise
    except ArchiveError as error:
        log.warning("archive not usable, will retry", why=str(error))
    except TimeoutError:
        log.warning("archive not usable, will retry", why=f"{path} did not answer in {_ARCHIVE_CHECK:.0f}s")


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


async def _authorities(path: Path | None) -> bytes:
    """The CAs of --notification-ca."""
    if path is None:
        return b""
    [found] = await asyncio.to_thread(read_files, [path], option="--notification-ca")
    return found


async def _recorded_features(client: Client, namespace: str) -> Features:
    """The installed features; all if Unwind is not installed here, because nothing says which are wanted."""
    try:
        found = await recorded_features(client, namespace)
    except ForbiddenError as error:
        raise UnwindError(
            f"cannot read ConfigMap {namespace}/{REGISTRATION}: {error.status.message}",
            remedy="run `unwind install` for this namespace, or choose another one with --namespace",
        ) from error
    return ALL if found is None else found


async def _refuse_rivals(client: Client, features: Features) -> None:
    found = await conflicting_controllers.find_rivals(
        client, features & conflicting_controllers.CONFLICTING, now=datetime.now(UTC)
    )
    against = [item for item in found if not item.rival.coexists]
    if against:
        told = ", ".join(f"{item.rival.name} ({item.found})" for item in against)
        raise UnwindError(f"cannot start: conflicting controllers are running: {told}", remedy=against[0].remedy)


def _identity() -> str:
    """The unique identity of this replica, valid as the name of a Lease."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:40].strip("-")
    return f"{host or 'manager'}-{uuid.uuid4().hex[:8]}"


def _log_lease_failed(error: Exception) -> None:
    why = "timed out" if isinstance(error, TimeoutError) else str(error)
    log.warning("lease renewal failed, will retry", why=why)


def _hosts(options: ManagerOptions) -> list[str]:
    """The host names for the certificate: the Service, this machine, and --tls-hosts."""
    service = f"{SERVICE}.{options.namespace}.svc"
    named = [options.listen.host] if not options.listen.everywhere else []
    return [service, f"{service}.cluster.local", "localhost", "127.0.0.1", "::1", *named, *options.hosts]


def _show_expiry(registry: CollectorRegistry, tls: Tls) -> None:
    def ends() -> float:
        return tls.ends.timestamp()

    Gauge(
        "unwind_serving_certificate_expiry_timestamp_seconds",
        "Expiry of the serving certificate as a Unix timestamp.",
        registry=registry,
    ).set_function(ends)
