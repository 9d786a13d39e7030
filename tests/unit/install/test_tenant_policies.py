"""The policies that keep users from borrowing the manager's rights, as values; tests/plane tries them on a server."""

from __future__ import annotations

import pytest

from unwind.addons.manifests import SUMMARIES, summaries_name
from unwind.api.admission import BY_MANAGER
from unwind.api.rights import Setting
from unwind.install.tenant_policies import TENANTS, attribution_name, credentials_name, sources_name


@pytest.mark.parametrize("contribution", [SUMMARIES, TENANTS])
def test_each_policy_denies_fails_closed_and_lets_the_manager_pass(contribution: object) -> None:
    manifests = contribution.manifests(Setting(namespace="elsewhere"))  # type: ignore[attr-defined]
    policies, bindings = manifests[::2], manifests[1::2]
    for policy, binding in zip(policies, bindings, strict=True):
        name = policy["metadata"]["name"]
        assert name.endswith(".elsewhere"), "each manager has its own"
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert f"!{BY_MANAGER}" in [item["expression"] for item in policy["spec"]["matchConditions"]]


def test_they_give_the_manager_no_right() -> None:
    for item in (SUMMARIES, TENANTS):
        assert (item.everywhere, item.at_home) == ((), ())


def test_their_names_differ() -> None:
    names = {item("home") for item in (summaries_name, sources_name, credentials_name, attribution_name)}
    assert len(names) == 4
