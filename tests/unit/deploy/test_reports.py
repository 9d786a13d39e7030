"""What became of a deployment."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.deploy.reports import DeploymentReport, ObjectOutcome, ObjectResult


def result(name: str, outcome: ObjectOutcome, message: str = "") -> ObjectResult:
    return ObjectResult(object=ObjectRef(kind="ConfigMap", namespace="a", name=name), outcome=outcome, message=message)


def test_it_is_complete_only_without_faults_failures_and_conflicts() -> None:
    fine = (result("a", ObjectOutcome.CREATED), result("b", ObjectOutcome.UNCHANGED))
    assert DeploymentReport(results=fine).complete
    assert not DeploymentReport(results=fine, faults=("x",)).complete
    for outcome in (ObjectOutcome.FAILED, ObjectOutcome.CONFLICT):
        assert not DeploymentReport(results=(*fine, result("c", outcome))).complete


def test_the_first_troubles_are_named_and_the_others_counted() -> None:
    report = DeploymentReport(
        results=tuple(result(f"o{n}", ObjectOutcome.FAILED, "no") for n in range(4)), faults=("broken",)
    )
    assert report.trouble == "broken; ConfigMap a/o0: no; ConfigMap a/o1: no; and 2 more"
    assert DeploymentReport().trouble == ""
    assert report.counts == {ObjectOutcome.FAILED: 4}
