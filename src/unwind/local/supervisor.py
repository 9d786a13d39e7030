"""The background supervisor of a control plane: start, record and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError
from unwind.local.build import Toolbox
from unwind.local.home import Home, Shape
from unwind.local.plane import Plane

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.local.home import PlaneRecord

_STOPPING = 20.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The control plane that a supervisor starts."""

    name: str
    shape: Shape
    toolbox: Toolbox


class SupervisorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A progress message of a supervisor."""

    progress: str = ""
    failure: str = ""
    ready: bool = False


async def up(order: Order, *, announce: Callable[[str], None]) -> PlaneRecord:
    """Start a supervisor in the background; return when the control plane is ready."""
    Home(order.name).claim(announce=announce).release()
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "unwind.local.supervisor",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert supervisor.stdin  # noqa: S101 - asked for above
    assert supervisor.stdout  # noqa: S101
    try:
        supervisor.stdin.write(msgspec.json.encode(order))
        supervisor.stdin.write_eof()
        async for line in supervisor.stdout:
            report = msgspec.json.decode(line, type=SupervisorReport)
            if report.progress:
                announce(report.progress)
            if report.failure:
                # Until it ends, it has files of its directory open.
                await supervisor.wait()
                raise UnwindError(report.failure)
            if report.ready:
                return existing_plane(order.name)
    except asyncio.CancelledError:
        # The caller was cancelled: the control plane must not start without it.
        with suppress(ProcessLookupError):
            supervisor.terminate()
        await supervisor.wait()
        raise
    raise UnwindError(
        f"the supervisor of control plane {order.name!r} exited without output", remedy="use --foreground to see why"
    )


async def keep(
    home: Home,
    order: Order,
    *,
    announce: Callable[[str], None],
    ready: Callable[[], None],
    until: asyncio.Event,
) -> None:
    """Start the control plane in this process, in a claimed home, and keep it running until `until` is set."""
    plane = Plane(home, shape=order.shape, toolbox=order.toolbox, announce=announce)
    starting = asyncio.create_task(plane.start())
    stopping = asyncio.create_task(until.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # the plane stops what it started
        with suppress(asyncio.CancelledError):
            await starting
        return
    stopping.cancel()
    starting.result()
    try:
        ready()  # the reader may be gone
        await until.wait()
    finally:
        await plane.stop()


def existing_plane(name: str) -> PlaneRecord:
    """The record of a running control plane."""
    home = Home(name)
    record = home.read() if home.in_use else None
    if record is None:
        others = [other.name for other in Home.all() if other.in_use]
        known = f" (running: {', '.join(others)})" if others else ""
        raise UnwindError(
            f"control plane {name!r} is not running{known}", remedy=f"start it with `unwind local up --name {name}`"
        )
    return record


async def down(name: str) -> bool:
    """Stop a control plane in any state; False if it does not exist."""
    home = Home(name)
    if not home.directory.exists():
        return False
    record = home.read()
    if record and home.in_use:
        record.supervisor.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOPPING):
                await record.supervisor.ended()
        except TimeoutError:
            # The kernel kills its child processes with it.
            record.supervisor.send(signal.SIGKILL)
            await record.supervisor.ended()
    if not home.directory.exists():
        return True
    if not home.take():
        raise UnwindError(f"control plane {name!r} is locked by another process", remedy="retry")
    home.remove()
    return True


def until_signalled() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, asked.set)
    return asked


def _main() -> None:
    """Run as the supervisor: read the order from standard input, write reports to standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)

    def report(**what: object) -> None:
        with suppress(BrokenPipeError):  # the caller is gone; the control plane starts anyway
            sys.stdout.buffer.write(msgspec.json.encode(SupervisorReport(**what)) + b"\n")  # type: ignore[arg-type]
            sys.stdout.buffer.flush()

    async def supervise() -> None:
        home = Home(order.name).claim(announce=announce)
        # From here on, unexpected errors are written to a file of the plane.
        with (home.directory / "supervisor.log").open("wb") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
        await keep(home, order, announce=announce, ready=lambda: report(ready=True), until=until_signalled())

    def announce(line: str) -> None:
        report(progress=line)

    try:
        asyncio.run(supervise())
    except UnwindError as error:
        report(failure=str(error))
        sys.exit(1)


if __name__ == "__main__":
    _main()
