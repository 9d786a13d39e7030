"""What became of a deployment."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.deploy.reports import Outcome, Report, Result


def result(name: str, outcome: Outcome, message: str = "") -> Result:
    return Result(object=ObjectRef(kind="ConfigMap", namespace="a", name=name), outcome=outcome, message=message)


def test_it_is_complete_only_without_faults_failures_and_conflicts() -> None:
    fine = (result("a", Outcome.CREATED), result("b", Outcome.UNCHANGED))
    assert Report(results=fine).complete
    assert not Report(results=fine, faults=("x",)).complete
    for outcome in (Outcome.FAILED, Outcome.CONFLICT):
        assert not Report(results=(*fine, result("c", outcome))).complete


def test_the_first_troubles_are_named_and_the_others_counted() -> None:
    report = Report(results=tuple(result(f"o{n}", Outcome.FAILED, "no") for n in range(4)), faults=("broken",))
    assert report.trouble == "broken; ConfigMap a/o0: no; ConfigMap a/o1: no; and 2 more"
    assert Report().trouble == ""
    assert report.counts == {Outcome.FAILED: 4}
