"""`unwind plan --policy FILE`: which clusters a TeardownPolicy would select, and what would be gated by it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from rich.console import Group
from rich.table import Table
from rich.text import Text

from unwind import safe_yaml
from unwind.api.policies import TEARDOWN_POLICIES, NotificationEvent, TeardownPolicy
from unwind.cli import console
from unwind.errors import UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.preview.policy_preview import PolicyPreview, preview_policy
from unwind.render.text import counted

if TYPE_CHECKING:
    from pathlib import Path

HELD = NotificationEvent.HELD.value
_FORMS = ("table", "wide", "json", "yaml")


async def show_policy(file: Path, output: str, *, kubeconfig: Path | None, context: str | None) -> None:
    """Print what the policy in a file would do."""
    if output not in _FORMS:
        raise UsageError(f"cannot show a policy as {output}", remedy=f"use one of {', '.join(_FORMS)}")
    policy = read_policy(file)
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-plan") as client:
        seen = await preview_policy(client, policy)
    if output == "json":
        console.show_json(msgspec.to_builtins(seen))
    elif output == "yaml":
        sys.stdout.write(console.as_yaml([msgspec.to_builtins(seen)]))
    else:
        console.show(policy_table(seen))


def read_policy(file: Path) -> TeardownPolicy:
    """The policy in a file. Raises UsageError."""
    try:
        document: Any = safe_yaml.load(file.read_bytes())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {file}: {error}", remedy="name a readable YAML file") from error
    kind = (TEARDOWN_POLICIES.api_version, TEARDOWN_POLICIES.kind)
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != kind:
        raise UsageError(
            f"cannot read {file}: it does not contain exactly one {kind[1]} of {kind[0]}",
            remedy="write one policy into the file",
        )
    try:
        policy = msgspec.convert(document, TeardownPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"cannot read {file}: {error}", remedy="correct this field") from error
    if not policy.metadata.name:
        raise UsageError(f"cannot read {file}: metadata.name is missing", remedy="add it")
    return policy


def policy_table(seen: PolicyPreview) -> Group:
    """The preview as tables."""
    parts: list[Any] = [
        Text(f"! {word}: would hold the clusters until it is corrected", style="bold red") for word in seen.unknown
    ]
    chosen = counted(len(seen.clusters), "cluster")
    parts.append(Text(f"TeardownPolicy {seen.policy} selects {chosen}, and {seen.others} not."))
    if seen.clusters:
        table = Table(box=None, pad_edge=False)
        for column in ("CLUSTER", "DELETION", "DEADLINE", "STEP", "EFFORT", "FROM"):
            table.add_column(column)
        for cluster in seen.clusters:
            first = (f"{cluster.namespace}/{cluster.name}", cluster.gate, f"{cluster.deadline}, {cluster.on_deadline}")
            rows = [(step.name, step.effort, step.conflict or ", ".join(step.effort_from)) for step in cluster.steps]
            for number, row in enumerate(rows or [("none", "", "")]):
                table.add_row(*(first if number == 0 else ("", "", "")), *row)
        parts.append(table)
        for cluster in seen.clusters:
            name = f"{cluster.namespace}/{cluster.name}"
            parts += [Text(f"! {name}: {why}", style="bold yellow") for why in cluster.not_counted]
            parts += [Text(f"{name}: {told.object}: {told.why}") for told in cluster.elsewhere]
        left = {step.name: step.left for cluster in seen.clusters for step in cluster.steps if step.left}
        parts += [Text(f"! {name}: {why}", style="bold yellow") for name, why in sorted(left.items())]
    for sink in seen.sinks:
        events = ", ".join(f"{event} for {sink.held_longer_than}" if event == HELD else event for event in sink.events)
        parts.append(Text(f"Notifies {sink.host} on {events}; signed with Secret {sink.signing_key}."))
    return Group(*parts)
