"""What `unwind plan --policy` shows of the sinks of a policy, and which hosts `unwind run` allows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unwind.cli.policies import policy_table
from unwind.cli.run import _notification_hosts
from unwind.errors import UsageError
from unwind.preview.policy_preview import PolicyPreview, PreviewedSink


def test_the_sinks_of_a_policy_are_listed_by_host() -> None:
    sink = PreviewedSink(
        host="hooks.example.com", events=("Held", "Complete"), held_longer_than="15m", signing_key="platform-hook/key"
    )
    out = Console(file=io.StringIO(), width=200)
    out.print(policy_table(PolicyPreview(policy="production", sinks=(sink,))))
    assert isinstance(out.file, io.StringIO)
    shown = "Notifies hooks.example.com on Held for 15m, Complete; signed with Secret platform-hook/key."
    assert shown in out.file.getvalue()


def test_allowed_hosts_are_names_and_addresses() -> None:
    assert _notification_hosts("Receiver.Monitoring.svc., [::1],10.1.2.3") == {
        "receiver.monitoring.svc",
        "::1",
        "10.1.2.3",
    }
    assert _notification_hosts("") == frozenset()
    for wrong in ("*", "*.svc", "https://a.svc", "a.svc:443", "10.0.0.0/8"):
        with pytest.raises(UsageError, match="--notification-hosts"):
            _notification_hosts(wrong)
