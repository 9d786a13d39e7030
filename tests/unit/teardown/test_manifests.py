"""What keeps requests honest, as values; what the API server makes of it is tried on one."""

from __future__ import annotations

import re

import pytest

from unwind.api.admission import BY_MANAGER
from unwind.api.names import RESOURCE_ANNOTATION
from unwind.api.rights import Setting
from unwind.teardown.manifests import REQUESTS, RESOURCE_NAME, requests_name


def test_each_manager_has_a_policy_and_a_binding_of_its_own_that_denies() -> None:
    policy, binding = REQUESTS.manifests(Setting(namespace="elsewhere"))
    assert policy["metadata"]["name"] == binding["metadata"]["name"] == requests_name("elsewhere")
    assert binding["spec"] == {"policyName": requests_name("elsewhere"), "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_every_write_of_a_teardown_is_checked_but_its_status() -> None:
    policy, _ = REQUESTS.manifests(Setting())
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["teardowns"], ["CREATE", "UPDATE", "DELETE"])
    assert "matchConditions" not in policy["spec"]
    expressions = " ".join(item["expression"] for item in policy["spec"]["validations"])
    assert "check('delete').allowed()" in expressions
    variables = {item["name"]: item["expression"] for item in policy["spec"]["variables"]}
    assert RESOURCE_ANNOTATION in variables["said"]
    assert variables["manager"] == BY_MANAGER


def test_the_annotations_of_a_request_have_one_rule_each() -> None:
    policy, _ = REQUESTS.manifests(Setting())
    expressions = [item["expression"] for item in policy["spec"]["validations"]]
    # All but the reason of a cancellation are the manager's. Nothing else is excepted.
    [unchanged] = [it for it in expressions if "object.spec == oldObject.spec" in it]
    assert unchanged.count("!(k in ['unwind.dev/cancel-reason', 'unwind.dev/cancel-reason-by'])") == 2
    [explained] = [it for it in expressions if "variables.explains" in it]
    assert "[?'unwind.dev/cancel-reason-by'].orValue('') == request.userInfo.username" in explained
    assert "variables.cancels" in explained


@pytest.mark.parametrize(
    ("resource", "valid"),
    [
        ("namespaces", True),
        ("x-gadgets2", True),
        ("", False),
        ("*", False),
        ("pods/exec", False),
        ("pods/*", False),
        ("Pods", False),
        ("pods\nsecrets", False),
    ],
)
def test_a_wildcard_or_a_subresource_is_no_resource(resource: str, valid: bool) -> None:
    assert (re.search(RESOURCE_NAME.replace("$", r"\Z"), resource) is not None) is valid


def test_it_gives_the_manager_no_right() -> None:
    assert (REQUESTS.everywhere, REQUESTS.at_home) == ((), ())
