"""Alerts about the manager and its teardowns, as a PrometheusRule. docs/alerts.md says what to do about each."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.api.resources import Resource
from unwind.kube.shards import SHARDS

PROMETHEUS_RULES = Resource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")
NAME = "unwind"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert."""

    name: str
    expr: str
    after: str
    """How long the expression must hold."""
    severity: str
    summary: str
    description: str

    def rule(self, *, runbooks: str = "") -> dict[str, Any]:
        """The rule in a rule group of Prometheus. `runbooks`: the address of the page docs/alerts.md, if it has one."""
        annotations = {"summary": self.summary, "description": self.description}
        if runbooks:
            annotations["runbook_url"] = f"{runbooks}#{self.name.lower()}"
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.after,
            "labels": {"severity": self.severity},
            "annotations": annotations,
        }


# Gauges about Teardowns are the same in every replica: `max` counts them once.
ALERTS = (
    Alert(
        name="UnwindTeardownHeld",
        expr="max without (instance, pod) (unwind_teardown_held_seconds) > 900",
        after="1m",
        severity="warning",
        summary="Deletion of {{ $labels.target }} is blocked",
        description=(
            "{{ $labels.target }} has been blocked for {{ $value | humanizeDuration }} by {{ $labels.blocker }}"
            " ({{ $labels.reason }}). Must act: {{ $labels.actor }}."
            " Details: kubectl get teardown {{ $labels.teardown }} -o yaml"
        ),
    ),
    Alert(
        name="UnwindGateNotArmed",
        expr="max(unwind_gate_unarmed_clusters) > 0",
        after="5m",
        severity="critical",
        summary="Cluster API would delete {{ $value }} clusters without waiting for their add-ons",
        description=(
            "Add-ons of {{ $value }} clusters must be removed before the cluster, but Cluster API does not call the"
            " BeforeClusterDelete hook for them. `unwind hooks` says why."
        ),
    ),
    Alert(
        name="UnwindMemberUnreachable",
        expr='max(unwind_teardown_blockers{reason="Unreachable"}) > 0',
        after="5m",
        severity="warning",
        summary="{{ $value }} teardowns wait for clusters that cannot be reached",
        description="`unwind status` names the clusters. Their objects cannot be removed until they answer.",
    ),
    Alert(
        name="UnwindManagerDown",
        # Without a manager the hook is not answered, so every deletion of a gated cluster waits.
        expr="absent(unwind_shards_owned)",
        after="5m",
        severity="critical",
        summary="No manager of Unwind is running",
        description="Deletions of clusters with a gate wait until a manager runs. Nothing is removed meanwhile.",
    ),
    Alert(
        name="UnwindShardsNotOwned",
        expr=f"sum(unwind_shards_owned) < {SHARDS}",
        after="2m",
        severity="critical",
        summary=f"Only {{{{ $value }}}} of {SHARDS} shards are owned by a manager",
        description="Teardowns of the other shards do not continue. Check that the managers can write their Leases.",
    ),
    Alert(
        name="UnwindCertificateExpiresSoon",
        expr="min(unwind_serving_certificate_expiry_timestamp_seconds) - time() < 86400",
        after="10m",
        severity="critical",
        summary="The serving certificate of Unwind expires in {{ $value | humanizeDuration }}",
        description="Webhooks and hooks fail when it has expired. The manager renews generated ones by itself.",
    ),
    Alert(
        name="UnwindQueueGrowing",
        expr="min by (controller) (min_over_time(unwind_queue_depth[10m])) > 100",
        after="5m",
        severity="warning",
        summary="The queue of {{ $labels.controller }} is not processed in time",
        description="At least 100 keys have been waiting for 10 minutes in every replica. Add replicas, or CPU.",
    ),
    Alert(
        name="UnwindReconcileErrors",
        expr="sum by (controller) (rate(unwind_reconcile_errors_total[10m])) > 0.1",
        after="10m",
        severity="warning",
        summary="{{ $labels.controller }} fails repeatedly",
        description="Reconciles of {{ $labels.controller }} fail {{ $value | humanize }} times a second. See the logs.",
    ),
    Alert(
        name="UnwindArchiveFailing",
        expr="sum(unwind_archive_pending_teardowns) > 0",
        after="15m",
        severity="warning",
        summary="{{ $value }} finished teardowns are not in the archive",
        description=(
            "Their Teardowns stay in the API server until they are. The Event NotArchived on each of them, and the logs"
            " of the manager, say why."
        ),
    ),
    Alert(
        name="UnwindNotificationsFailing",
        # Attempts are retried with a growing delay, so a sink that is down for a moment fails once or twice.
        expr="sum by (reason) (increase(unwind_notifications_failed_total[30m])) > 3",
        after="0m",
        severity="warning",
        summary="Notifications about teardowns do not arrive",
        description=(
            "{{ $value | humanize }} attempts failed in 30 minutes ({{ $labels.reason }}). They are retried. The"
            " condition NotificationsFailing of the TeardownPolicies says which sink, and why."
        ),
    ),
    Alert(
        name="UnwindPolicyRestored",
        expr="sum by (kind) (increase(unwind_policies_restored_total[15m])) > 3",
        after="0m",
        severity="warning",
        summary="An admission policy of Unwind is deleted or changed again and again",
        description="The manager restored {{ $value | humanize }} objects of kind {{ $labels.kind }} in 15 minutes.",
    ),
)


def rule_groups(*, runbooks: str = "") -> dict[str, Any]:
    """The alerts as the content of a rule file of Prometheus."""
    return {"groups": [{"name": NAME, "rules": [alert.rule(runbooks=runbooks) for alert in ALERTS]}]}


def prometheus_rule(namespace: str, *, runbooks: str = "") -> dict[str, Any]:
    """The alerts as an object for the Prometheus operator."""
    return {
        "apiVersion": PROMETHEUS_RULES.api_version,
        "kind": PROMETHEUS_RULES.kind,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": rule_groups(runbooks=runbooks),
    }
