"""The receiver of docs/notifications.md accepts what the manager sends, and nothing else."""

from __future__ import annotations

import base64
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from tests.https_sinks import HttpsSink
from unwind.api.policies import NotificationEvent, TeardownPolicy
from unwind.notifications.addresses import AddressRules
from unwind.notifications.cloud_event import TYPE
from unwind.notifications.signature import parse_key, signed_headers
from unwind.notifications.sink_request import Delivery, DeliveryError, FailureReason, trust

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text()
KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@contextmanager
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpsSink]:
    monkeypatch.setenv("SIGNING_KEY", KEY)
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {"__name__": "receiver"}
    exec(compile(code, "receiver.py", "exec"), module)  # noqa: S102 - of our own page
    sink = HttpsSink("127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), module["Receiver"])
    server.socket = sink.tls().wrap_socket(server.socket, server_side=True)
    sink.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()


async def send(sink: HttpsSink, body: bytes, *, key: str = KEY, at: datetime | None = None, sent: bytes = b"") -> None:
    headers = signed_headers(parse_key(key.encode()), id="t1-held", now=at or datetime.now(UTC), body=body)
    delivery = Delivery(
        AddressRules(allowed=frozenset({"127.0.0.1"})), trust(sink.authority.certificate), user_agent="unwind-manager"
    )
    await delivery.send(sink.url, sent or body, headers, within=10)


async def test_the_receiver_accepts_what_is_signed_and_prints_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = msgspec.json.encode({"id": "t1-held", "type": f"{TYPE}.held", "subject": "shops/prod-7"})
    with receiver(monkeypatch) as sink:
        await send(sink, body)
        await send(sink, body)
        for wrong in (
            {"key": "whsec_" + base64.b64encode(bytes(32)).decode()},
            {"at": datetime.now(UTC) - timedelta(minutes=6)},
            {"at": datetime.now(UTC) + timedelta(minutes=6)},
            {"sent": body.replace(b"prod-7", b"prod-8")},
        ):
            with pytest.raises(DeliveryError) as found:
                await send(sink, body, **wrong)
            assert found.value.reason is FailureReason.STATUS
            assert "HTTP 401" in str(found.value)
    assert capsys.readouterr().out == f"{TYPE}.held shops/prod-7\n"


def test_the_page_names_every_event_and_reason_and_its_policy_is_read() -> None:
    for event in NotificationEvent:
        assert f"| `{event}` |" in PAGE
        assert f"`{TYPE}.{event.lower()}`" in PAGE
    for reason in FailureReason:
        assert f"`{reason}`" in PAGE
    [text] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    policy = msgspec.convert(yaml.safe_load(text), TeardownPolicy)
    [one] = policy.spec.notifications
    assert set(one.events) == set(NotificationEvent)
