"""Which clusters a TeardownPolicy selects, and what several policies say about one step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from unwind.api.meta import ObjectRef
from unwind.api.policies import PolicyGate, SourceKind, TeardownPolicy
from unwind.api.unwind import Effort
from unwind.companions import policy_merge, policy_status
from unwind.companions.companion import Handle
from unwind.companions.policy_merge import Selection
from unwind.companions.policy_reader import ClusterPolicies
from unwind.companions.policy_status import SelectedCluster
from unwind.companions.step_source import warnings_of

PROD = {"matchLabels": {"env": "prod"}}
FLUX = {"kind": "Flux", "effort": "Enforce"}
APPS = ObjectRef(kind="Kustomization", namespace="shops", name="apps", uid="1")


def policy(
    name: str = "production",
    *,
    sources: tuple[dict[str, Any], ...] = (FLUX,),
    selector: dict[str, Any] | None = PROD,
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> TeardownPolicy:
    body = {"clusterSelector": selector} if selector is not None else {}
    return msgspec.convert(
        {
            "metadata": {"name": name, "generation": 1, **(metadata or {})},
            "spec": {**body, "sources": list(sources), **spec},
            "status": status or {},
        },
        TeardownPolicy,
    )


def decide(*found: TeardownPolicy, handle: ObjectRef = APPS, source: SourceKind = SourceKind.FLUX) -> Any:
    return policy_merge.decide(found, source, handle, home="shops", on_member=False)


def test_an_empty_or_missing_selector_selects_nothing() -> None:
    labels = {"env": "prod"}
    assert policy_merge.matches(policy(), labels, {})
    assert not policy_merge.matches(policy(selector={}), labels, {})
    assert not policy_merge.matches(policy(selector=None), labels, {})
    assert not policy_merge.matches(policy(namespaceSelector={}), labels, {"a": "b"})


def test_both_selectors_must_match() -> None:
    both = policy(namespaceSelector={"matchLabels": {"team": "shops"}})
    assert policy_merge.matches(both, {"env": "prod"}, {"team": "shops"})
    assert not policy_merge.matches(both, {"env": "prod"}, {})
    assert not policy_merge.matches(both, {"env": "test"}, {"team": "shops"})


def test_an_unknown_operator_selects_what_the_other_requirements_match() -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "Like"}, {"key": "b", "operator": "Exists"}]}
    unclear = policy(selector=selector)
    assert policy_merge.matches(unclear, {"b": "1"}, {})
    assert not policy_merge.matches(unclear, {}, {})
    assert policy_merge.unknown_words(unclear) == [
        "clusterSelector: unknown operator 'Like' for key a (valid: In, NotIn, Exists, DoesNotExist)"
    ]


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [
        ({"key": "a", "operator": "In"}, "operator In for key a needs values; add some"),
        ({"key": "a", "operator": "Exists", "values": ["x"]}, "operator Exists for key a takes no values; remove them"),
    ],
)
def test_a_requirement_whose_values_do_not_fit_its_operator_holds_the_clusters_that_the_others_match(
    requirement: dict[str, Any], fault: str
) -> None:
    unclear = policy(selector={"matchExpressions": [requirement, {"key": "b", "operator": "Exists"}]})
    assert policy_merge.matches(unclear, {"b": "1"}, {})
    assert not policy_merge.matches(unclear, {}, {})
    assert policy_merge.unknown_words(unclear) == [f"clusterSelector: {fault}"]


SHOPS_A = ObjectRef(kind="Cluster", namespace="shops", name="a", uid="c1")


def recorded(**spec: Any) -> dict[str, Any]:
    """The status of a policy that selects one cluster, as the manager writes it."""
    one = SelectedCluster(ref=SHOPS_A, selection=Selection.MATCHES, gate=PolicyGate.ARMED)
    found = policy_status.status(policy(**spec), [one], now=datetime(2026, 1, 1, tzinfo=UTC))
    return cast("dict[str, Any]", msgspec.to_builtins(found))


def test_a_recorded_cluster_stays_selected_after_it_was_relabelled() -> None:
    kept = policy(status=recorded())
    assert policy_merge.selection(kept, "c1", {"env": "prod"}, {}) is Selection.MATCHES
    assert policy_merge.selection(kept, "c1", {}, {}) is Selection.STILL
    assert policy_merge.selection(kept, "c2", {}, {}) is Selection.NO, "another cluster of this name"


@pytest.mark.parametrize(
    "changed",
    [
        {"selector": {"matchLabels": {"env": "live"}}},
        {"namespaceSelector": {"matchLabels": {"env": "prod"}}},
        {"metadata": {"annotations": {"unwind.dev/reselect": "1"}}},
    ],
    ids=["clusterSelector", "namespaceSelector", "annotation"],
)
def test_a_writer_of_the_policy_lets_a_relabelled_cluster_leave(changed: dict[str, Any]) -> None:
    after = policy(status=recorded(), **changed)
    assert policy_merge.selection(after, "c1", {}, {}) is Selection.NO


@pytest.mark.parametrize(
    "changed",
    [{"order": [["apps"]]}, {"deadline": "2h"}, {"sources": ()}, {"gate": "Machines"}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_change_of_a_policy_that_selects_the_same_lets_no_relabelled_cluster_leave(changed: dict[str, Any]) -> None:
    """While no manager runs, or long after the cluster was relabelled."""
    after = policy(status=recorded(), metadata={"generation": 2}, **changed)
    assert policy_merge.selection(after, "c1", {}, {}) is Selection.STILL


@pytest.mark.parametrize("form", ["", "9:ab"], ids=["of an earlier version", "of a later version"])
def test_a_record_that_is_not_understood_keeps_its_clusters_until_the_policy_selects_again(form: str) -> None:
    status = {**recorded(), "selectors": form}
    live = {"matchLabels": {"env": "live"}}
    assert policy_merge.selection(policy(status=status, selector=live), "c1", {}, {}) is Selection.STILL
    again = policy(status=status, metadata={"annotations": {"unwind.dev/reselect": "1"}})
    assert policy_merge.selection(again, "c1", {}, {}) is Selection.NO


def test_the_same_selectors_are_recorded_as_the_same_whatever_the_order_of_their_labels() -> None:
    one = {"matchLabels": {"env": "prod", "tier": "1"}}
    other = {"matchLabels": {"tier": "1", "env": "prod"}}
    assert recorded(selector=one)["selectors"] == recorded(selector=other)["selectors"]
    assert recorded(namespaceSelector=one)["selectors"] != recorded(namespaceSelector={})["selectors"]


def test_leave_and_enforce_together_hold_without_deleting() -> None:
    left = policy("careful", sources=({"kind": "Flux", "effort": "Leave"},))
    decision = decide(policy(), left)
    assert decision.effort is Effort.ENFORCE
    assert not decision.deletes
    assert "production, but left in place by TeardownPolicy careful" in decision.conflict


REMOVE = {**FLUX, "suspended": "Remove"}


def test_unwind_removes_what_a_suspended_handle_deployed_only_if_every_policy_that_mentions_it_says_so() -> None:
    assert decide(policy(sources=(REMOVE,))).removes_suspended
    assert decide(policy("a", sources=(REMOVE,)), policy("b", sources=(REMOVE,))).removes_suspended
    silent = decide(policy("a", sources=(REMOVE,)), policy("b"))
    assert (silent.removes_suspended, silent.suspended_held_by) == (False, ("b",))
    held = decide(policy("a", sources=(REMOVE, {**FLUX, "effort": "Try", "suspended": "Hold"})))
    assert (held.removes_suspended, held.suspended_held_by) == (False, ("a",))
    others = policy("b", sources=({**FLUX, "selector": {"names": ["base"]}},))
    assert decide(policy("a", sources=(REMOVE,)), others).removes_suspended, "it does not mention the handle"


def test_a_policy_that_holds_suspended_handles_is_named_in_the_warning_of_the_plan() -> None:
    handle = Handle(ref=APPS, source=SourceKind.FLUX, left="is suspended, so Flux would leave what it deployed")
    both = (policy("a", sources=(REMOVE,)), policy("b"))
    [held] = warnings_of(handle, ClusterPolicies(target=APPS, policies=both).decide(handle))
    assert held == (
        "Kustomization/shops/apps: it is suspended, so Flux would leave what it deployed: it is held until a user"
        " changes it, or sets suspended: Remove; TeardownPolicy/b does not say suspended: Remove"
    )
    [removed] = warnings_of(handle, ClusterPolicies(target=APPS, policies=both[:1]).decide(handle))
    assert removed.endswith("Unwind removes its objects (suspended: Remove)")
    [unselected] = warnings_of(handle, None)
    assert unselected == f"Kustomization/shops/apps: it {handle.left}", "nothing of it is removed"


def test_a_policy_that_leaves_a_handle_does_not_let_unwind_remove_its_objects() -> None:
    left = policy("careful", sources=({**REMOVE, "effort": "Leave"},))
    assert not decide(policy(sources=(REMOVE,)), left).removes_suspended


def test_a_policy_that_does_not_name_the_namespace_of_a_handle_still_keeps_its_objects() -> None:
    elsewhere = msgspec.structs.replace(APPS, namespace="tenants")
    named = policy("a", sources=({**REMOVE, "namespaces": ["tenants"]},))
    assert decide(named, handle=elsewhere).removes_suspended
    assert decide(named, policy("b"), handle=elsewhere).suspended_held_by == ("b",)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ({**FLUX, "suspended": "Purge"}, "suspended of source Flux: 'Purge' is not known (valid: Hold, Remove)"),
        (
            {"kind": "HelmReleaseProxy", "effort": "Enforce", "suspended": "Remove"},
            "source HelmReleaseProxy has suspended: Remove, which is only possible for Flux; remove it",
        ),
    ],
)
def test_an_unknown_or_impossible_word_for_suspended_handles_is_named_and_holds(
    source: dict[str, Any], word: str
) -> None:
    unclear = policy(sources=(source,))
    assert policy_merge.unknown_words(unclear) == [word]
    decision = decide(unclear, source=SourceKind(source["kind"]))
    assert decision.removes_suspended is (source["suspended"] == "Remove")


def test_enforce_is_stricter_than_try_and_names_its_policies() -> None:
    decision = decide(policy("b"), policy("a"), policy("c", sources=({"kind": "Flux", "effort": "Try"},)))
    assert (decision.effort, decision.policies, decision.conflict) == (Effort.ENFORCE, ("a", "b"), "")


def test_a_handle_in_another_namespace_is_no_step_unless_the_source_names_it() -> None:
    elsewhere = msgspec.structs.replace(APPS, namespace="flux-system")
    assert decide(policy(), handle=elsewhere) is None
    assert decide(policy(sources=({"kind": "Flux", "effort": "Leave"},)), handle=elsewhere) is None
    named = policy(sources=({**FLUX, "namespaces": ["flux-system"]},))
    assert decide(named, handle=elsewhere).effort is Effort.ENFORCE
    everywhere = policy("careful", sources=({"kind": "Flux", "effort": "Leave"},))
    assert decide(named, everywhere, handle=elsewhere).conflict, "Leave needs no namespaces"


def test_a_handle_that_no_source_mentions_is_no_step() -> None:
    assert decide(policy(), source=SourceKind.HELM) is None
    assert decide(policy(sources=({**FLUX, "selector": {"names": ["base"]}},))) is None


def test_plain_helm_needs_a_selector() -> None:
    without = policy(sources=({"kind": "Helm", "effort": "Enforce"},))
    assert policy_merge.decide([without], SourceKind.HELM, APPS, home="shops", on_member=True) is None
    assert policy_merge.unknown_words(without) == ["source Helm has no selector; add one"]


def helm(effort: str = "Enforce", **selector: list[str]) -> TeardownPolicy:
    return policy(effort.lower(), sources=({"kind": "Helm", "effort": effort, "selector": selector},))


def test_a_release_that_the_cluster_needs_is_a_step_only_by_its_exact_name_and_namespace() -> None:
    cni = ObjectRef(kind="Release", namespace="kube-system", name="cilium")
    exact = helm("Try", names=["cilium"], namespaces=["kube-system"])

    def decided(*found: TeardownPolicy) -> Any:
        return policy_merge.decide(found, SourceKind.HELM, cni, home="shops", on_member=True, exactly=True)

    for wide in (
        helm(names=["*"], namespaces=["kube-system"]),
        helm(names=["cilium"]),
        helm(names=["cilium"], namespaces=["*"]),
        helm(names=["cilium"], namespaces=["kube-*"]),
        helm(namespaces=["kube-system"]),
    ):
        assert decided(wide) is None
        assert decided(wide, exact).effort is Effort.TRY
        assert not policy_merge.names_exactly([wide], SourceKind.HELM, cni)
        assert policy_merge.names_exactly([wide, exact], SourceKind.HELM, cni)


def test_a_release_of_a_tenant_with_the_name_of_one_that_a_policy_names_is_not_named() -> None:
    found = [helm(names=["cilium"], namespaces=["kube-system"]), helm("Try", names=["cilium"], namespaces=["*"])]
    theirs = ObjectRef(kind="Release", namespace="tenant", name="cilium")
    assert not policy_merge.names_exactly(found, SourceKind.HELM, theirs)


def test_unknown_words_are_named_and_enforce() -> None:
    unclear = policy(sources=({"kind": "Argo", "effort": "Must"},), deadline="soon", onDeadline="Panic")
    assert policy_merge.unknown_words(unclear) == [
        "kind of a source: 'Argo' is not known (valid: Flux, HelmReleaseProxy, Helm, Profile, Work)",
        "effort of source Argo: 'Must' is not known (valid: Leave, Try, Enforce)",
        "deadline: 'soon' is not known (valid: a duration such as 30m, 2h or 1d)",
        "onDeadline: 'Panic' is not known (valid: Hold, Release)",
    ]
    assert policy_merge.enforces(unclear)
    assert not policy_merge.enforces(policy(sources=({"kind": "Flux", "effort": "Try"},)))


PROFILE = ObjectRef(kind="ClusterProfile", name="monitoring")
OWN_FROM = "clusterDeletionBehavior of ClusterProfile/monitoring"


def with_own(own: Effort, *efforts: str) -> policy_merge.StepDecision:
    """What a profile with this effort of its own and a policy for each of the others decide."""
    found = tuple(policy(effort.lower(), sources=({"kind": "Profile", "effort": effort},)) for effort in efforts)
    cluster = ClusterPolicies(target=ObjectRef(kind="Cluster", namespace="shops", name="a"), policies=found)
    decision = cluster.with_own(SourceKind.PROFILE, PROFILE, own, OWN_FROM)
    assert decision
    return decision


def test_a_profile_is_one_of_the_voices_that_decide_about_it() -> None:
    raised = with_own(Effort.TRY, "Enforce")
    assert (raised.effort, raised.policies, raised.deletes) == (Effort.ENFORCE, ("enforce",), True)
    own = with_own(Effort.ENFORCE, "Try")
    assert (own.effort, own.policies, own.deletes) == (Effort.ENFORCE, (), True), "a policy does not lower it"
    left = with_own(Effort.TRY, "Leave")
    assert (left.effort, left.policies, left.deletes) == (Effort.LEAVE, ("leave",), False)
    kept = with_own(Effort.LEAVE, "Try")
    assert (kept.effort, kept.policies, kept.conflict) == (Effort.LEAVE, (), "")


def test_a_profile_and_a_policy_that_contradict_each_other_hold_and_are_named() -> None:
    assert with_own(Effort.LEAVE, "Enforce").conflict.startswith(
        f"enforced by TeardownPolicy enforce, but left in place by {OWN_FROM}: nothing of it is deleted"
    )
    assert (
        f"enforced by {OWN_FROM}, but left in place by TeardownPolicy leave:"
        in with_own(Effort.ENFORCE, "Leave").conflict
    )


def test_works_can_only_be_enforced() -> None:
    tried = policy(sources=({"kind": "Work", "effort": "Try"},))
    assert policy_merge.unknown_words(tried) == [
        "source Work has the effort Try, but only Enforce is possible; write Enforce"
    ]
    assert policy_merge.unknown_words(policy(sources=({"kind": "Work", "effort": "Enforce"},))) == []


def test_the_terms_name_the_policies_that_set_an_order() -> None:
    found = (policy("b", order=[["grafana"]]), policy("a", order=[["postgres"]]), policy("c"))
    terms = ClusterPolicies(target=APPS, policies=found).terms
    assert terms
    assert terms.order_from == "TeardownPolicy a, TeardownPolicy b"
    unordered = ClusterPolicies(target=APPS, policies=found[2:]).terms
    assert unordered
    assert unordered.order_from == ""
