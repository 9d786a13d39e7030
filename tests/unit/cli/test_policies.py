"""What `unwind plan --policy` shows of the sinks of a policy, and which hosts `unwind run` allows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unwind.api.meta import ObjectRef
from unwind.cli.policies import policy_table
from unwind.cli.run import _notification_hosts
from unwind.errors import UsageError
from unwind.preview.companion_preview import not_a_step
from unwind.preview.policy_preview import PolicyPreview, PreviewedCluster, PreviewedSink
from unwind.removal.deletion_scope import Told


def printed(seen: PolicyPreview) -> str:
    out = Console(file=io.StringIO(), width=200)
    out.print(policy_table(seen))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_sinks_of_a_policy_are_listed_by_host() -> None:
    sink = PreviewedSink(
        host="hooks.example.com", events=("Held", "Complete"), held_longer_than="15m", signing_key="platform-hook/key"
    )
    shown = "Notifies hooks.example.com on Held for 15m, Complete; signed with Secret platform-hook/key."
    assert shown in printed(PolicyPreview(policy="production", sinks=(sink,)))


def test_handles_that_are_no_steps_or_are_not_counted_are_listed_by_cluster() -> None:
    web = ObjectRef(kind="HelmReleaseProxy", namespace="other", name="web")
    cluster = PreviewedCluster(
        namespace="shops",
        name="prod",
        gate="held",
        deadline="none",
        on_deadline="Hold",
        elsewhere=(Told(web, not_a_step(web)),),
        not_counted=("not counted: Helm releases: no route to host",),
    )
    table = printed(PolicyPreview(policy="production", clusters=(cluster,)))
    assert "! shops/prod: not counted: Helm releases: no route to host" in table
    no_step = "not a step: namespace other is in no sources[].namespaces of a TeardownPolicy"
    assert f"shops/prod: HelmReleaseProxy other/web: {no_step}" in table


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
