"""What keeps requests honest, as values; what the API server makes of it is tried on one."""

from __future__ import annotations

from unwind.api.names import RESOURCE_ANNOTATION
from unwind.api.rights import Setting
from unwind.installing.requesting import REQUESTS, requests_name


def test_each_manager_has_a_policy_and_a_binding_of_its_own_that_denies() -> None:
    policy, binding = REQUESTS.manifests(Setting(namespace="elsewhere"))
    assert policy["metadata"]["name"] == binding["metadata"]["name"] == requests_name("elsewhere")
    assert binding["spec"] == {"policyName": requests_name("elsewhere"), "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_only_what_somebody_asks_for_is_looked_at_and_by_the_rights_of_who_asks() -> None:
    policy, _ = REQUESTS.manifests(Setting())
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["teardowns"], ["CREATE", "UPDATE"])
    [condition] = policy["spec"]["matchConditions"]
    assert "'Requested'" in condition["expression"]
    expressions = " ".join(one["expression"] for one in policy["spec"]["validations"])
    assert "check('delete').allowed()" in expressions
    assert RESOURCE_ANNOTATION in expressions


def test_it_gives_the_manager_no_right() -> None:
    assert (REQUESTS.everywhere, REQUESTS.at_home) == ((), ())
