"""Probes of a container: HTTP, HTTPS and TCP."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object


async def run_probe(probe: Object, container: Object, ip: str, changed: Callable[[bool], None]) -> None:
    """Probe until cancelled; calls `changed` whenever a threshold of successes or failures is reached."""
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    needed = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    last, row = False, 0
    while True:
        answer = await asyncio.to_thread(probe_once, probe, container, ip)
        row = row + 1 if answer is last else 1
        last = answer
        if row == needed[answer]:
            changed(answer)
        await asyncio.sleep(probe.get("periodSeconds", 10))


def probe_once(probe: Object, container: Object, ip: str) -> bool:
    """Whether one probe succeeds. Certificates are not verified."""
    timeout = probe.get("timeoutSeconds", 1)
    action = probe.get("httpGet") or probe["tcpSocket"]
    host, port = action.get("host") or ip, _port(action["port"], container)
    if "tcpSocket" in probe:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
        except OSError:
            return False
        return True
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=_unverified())
        if action.get("scheme") == "HTTPS"
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    try:
        headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
        connection.request("GET", action.get("path", "/"), headers=headers)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    named = {port.get("name"): port["containerPort"] for port in container.get("ports") or ()}
    return int(named.get(port, port))


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
