"""`unwind dashboard`: a web page about teardowns, for one person, on loopback."""

from __future__ import annotations

import asyncio
import html
import os
import shutil
import socket
import tempfile
import webbrowser
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unwind.api.rights import HOME
from unwind.cli import console
from unwind.cli.arguments import Context, Home, Kubeconfig
from unwind.cli.why import kubectl_options
from unwind.errors import UnwindError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.members.members import Members

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDRESS = "127.0.0.1"


async def dashboard(
    *,
    port: Annotated[int, Parameter(help="The port on 127.0.0.1; default: any free port.")] = 0,
    browser: Annotated[bool, Parameter(negative="--no-browser", help="Open the page in a browser.")] = True,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Show teardowns, stuck objects, plans and the ledger as a web page, with the rights of your kubeconfig.

    The page is served on 127.0.0.1 until Ctrl-C. The address contains a token that works once: the browser that opens
    it first is the only one that sees the page.
    """
    try:
        # Only this command needs these packages.
        from unwind.dashboard.guard import Sessions  # noqa: PLC0415
        from unwind.dashboard.live import LiveTeardowns  # noqa: PLC0415
        from unwind.dashboard.server import Dashboard, Server, serve  # noqa: PLC0415
    except ImportError as error:
        raise UnwindError(
            f"cannot start the dashboard: {error}", remedy="install the extra: pip install 'kube-unwind[dashboard]'"
        ) from error
    connection = kubeconfigs.load(kubeconfig, context=context)
    with _bound(port) as bound:
        actual: int = bound.getsockname()[1]
        sessions = Sessions()
        address = f"http://{_ADDRESS}:{actual}/?token={sessions.token}"
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(connection, user_agent="unwind-dashboard"))
            fleet = await stack.enter_async_context(Members(client))
            opener = stack.enter_context(browser_file(address)) if browser else None
            live = LiveTeardowns(client)
            pages = Dashboard(
                client,
                live=live,
                fleet=fleet,
                sessions=sessions,
                kubectl=kubectl_options(kubeconfig, context),
                home=unwind_namespace,
                exchanged=lambda: opener.unlink(missing_ok=True) if opener else None,
            )
            server = Server(pages.app([f"{_ADDRESS}:{actual}", f"localhost:{actual}"]), live)
            print(address, flush=True)
            console.announce("The address works once. Press Ctrl-C to end the dashboard.")
            if opener:
                await asyncio.to_thread(webbrowser.open, opener.as_uri())
            await serve(server, bound, live)


@contextmanager
def _bound(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((_ADDRESS, port))
        except (OSError, OverflowError) as error:
            raise UnwindError(f"cannot listen on {_ADDRESS}:{port}: {error}", remedy="use another --port") from error
        bound.listen()  # the browser may be faster than the server
        yield bound


@contextmanager
def browser_file(address: str) -> Iterator[Path]:
    """A file that leads a browser to the address. Other users of the machine see the arguments of a process, but not
    the content of this file."""
    directory = Path(tempfile.mkdtemp(prefix="unwind-dashboard-", dir=os.environ.get("XDG_RUNTIME_DIR") or None))
    file = directory / "open.html"
    quoted = html.escape(address)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Unwind</title>'
                '<meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={quoted}"></head>'
                f'<body><a href="{quoted}">Open the Unwind dashboard</a></body></html>'
            )
        yield file
    finally:
        shutil.rmtree(directory, ignore_errors=True)
