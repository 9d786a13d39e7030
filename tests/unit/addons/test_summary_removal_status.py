"""The status of a ClusterSummary while its objects are removed."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.addons.summary_status import of_step, waiting_status
from unwind.api.meta import find
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos import ClusterSummaryStatus, FeatureSummary
from unwind.api.unwind import StepState
from unwind.teardown.status import StepReport

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DEPLOYED = ClusterSummaryStatus(feature_summaries=(FeatureSummary(feature_id="Resources", status="Provisioned"),))
REMOVING = StepReport(state=StepState.REMOVING)
BLOCKED = StepReport(state=StepState.REMOVING, reason="Finalizer", message="a waits (must act: b)")
GIVEN_UP = StepReport(state=StepState.GIVEN_UP, reason="GaveUp", message="timed out")
LEFT = StepReport(state=StepState.LEFT, reason="KeptByPolicy", message="LeavePolicies")
REMOVED = StepReport(state=StepState.REMOVED)
WAITING = StepReport(state=StepState.WAITING, reason="Waiting", message="waiting for top")


def after(*reports: StepReport) -> ClusterSummaryStatus:
    status = DEPLOYED
    for report in reports:
        status = of_step(status, report, now=NOW)
    return status


def conditions(status: ClusterSummaryStatus) -> dict[str, str]:
    return {condition.type: condition.reason for condition in status.conditions if condition.status == "True"}


@pytest.mark.parametrize(
    ("reports", "told", "feature"),
    [
        ((WAITING,), {"Blocked": "Waiting"}, "Provisioned"),
        ((WAITING, REMOVING), {"Removing": "Removing"}, "Removing"),
        ((REMOVING, BLOCKED), {"Removing": "Removing", "Blocked": "Finalizer"}, "Removing"),
        ((BLOCKED, REMOVED), {"Removed": "Removed"}, "Removed"),
        ((BLOCKED, GIVEN_UP), {"GivenUp": "GaveUp"}, "FailedNonRetriable"),
        ((WAITING, LEFT), {"Left": "KeptByPolicy"}, "Provisioned"),
    ],
)
def test_it_tells_one_state_of_the_removal_and_what_blocks_it(
    reports: tuple[StepReport, ...], told: dict[str, str], feature: str
) -> None:
    status = after(*reports)
    assert conditions(status) == told
    assert [item.status for item in status.feature_summaries] == [feature]


def test_the_blocker_and_who_must_act_are_in_the_message() -> None:
    status = after(BLOCKED)
    blocked = find(status.conditions, ConditionType.BLOCKED)
    assert blocked
    assert blocked.message == status.dependencies == "a waits (must act: b)"
    assert status.feature_summaries[0].failure_message == "a waits (must act: b)"
    assert after(BLOCKED, REMOVED).feature_summaries[0].failure_message is None


def test_the_same_report_changes_nothing() -> None:
    for report in (WAITING, REMOVING, BLOCKED, REMOVED, LEFT, GIVEN_UP):
        status = after(report)
        assert of_step(status, report, now=NOW + dt.timedelta(hours=1)) == status


def test_other_conditions_stay() -> None:
    before = waiting_status(DEPLOYED, Reason.NOT_READY, "x", now=NOW)
    gate = before.conditions[0].__class__(type="GateNotArmed", status="True", reason="NotRegistered")
    status = of_step(ClusterSummaryStatus(conditions=(*before.conditions, gate)), REMOVED, now=NOW)
    assert conditions(status) == {"GateNotArmed": "NotRegistered", "Removed": "Removed"}
