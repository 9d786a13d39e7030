"""What a profile asks for that is not done yet."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.addons import validation
from unwind.addons.matching import ProfileKey
from unwind.api.sveltos import HelmChart, KustomizationRef, PolicyRef, ProfileSpec, TemplateResourceRef


def chart(**more: Any) -> HelmChart:
    return HelmChart(repository_url="https://charts", chart_name="c", release_name="r", release_namespace="n", **more)


def test_what_is_supported_is_not_told() -> None:
    spec = ProfileSpec(
        tier=50,
        depends_on=("base",),
        continue_on_conflict=True,
        continue_on_error=True,
        policy_refs=(PolicyRef(kind="ConfigMap", name="a"), PolicyRef(kind="Secret", name="b", optional=True)),
        helm_charts=(chart(values="a: 1"),),
    )
    for mode in ("OneTime", "Continuous", "DryRun"):
        assert validation.in_spec(ProfileSpec(sync_mode=mode)) == []
    assert validation.in_spec(spec, raw={"tier": 50, "policyRefs": []}) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"set_refs": ("a",)}, "setRefs"),
        ({"kustomization_refs": (KustomizationRef(kind="ConfigMap"),)}, "kustomizationRefs"),
        ({"template_resource_refs": (TemplateResourceRef(),)}, "templateResourceRefs"),
        ({"pre_deploy_checks": ({},)}, "preDeployChecks"),
        ({"validate_healths": ({},)}, "validateHealths"),
        ({"pre_delete_checks": ({},)}, "preDeleteChecks"),
        ({"post_delete_checks": ({},)}, "postDeleteChecks"),
        ({"drift_exclusions": ({},)}, "driftExclusions"),
        ({"patches": ({},)}, "patches"),
        ({"reloader": True}, "reloader"),
        ({"max_update": "30%"}, "maxUpdate"),
        ({"sync_mode": "ContinuousWithDriftDetection"}, "syncMode ContinuousWithDriftDetection"),
        ({"sync_mode": "Sometimes"}, "syncMode Sometimes"),
        ({"policy_refs": (PolicyRef(kind="GitRepository", name="a"),)}, "policyRefs[0].kind GitRepository"),
        ({"policy_refs": (PolicyRef(kind="ConfigMap", path="a"),)}, "policyRefs[0].path"),
        (
            {"policy_refs": (PolicyRef(kind="Secret"), PolicyRef(kind="Secret", name="{{ .Cluster.name }}"))},
            "policyRefs[1].name (template)",
        ),
        (
            {"policy_refs": (PolicyRef(kind="Secret", deployment_type="Both"),)},
            "policyRefs[0].deploymentType Both",
        ),
        ({"helm_charts": (chart(values="a: {{ .b }}"),)}, "helmCharts[0].values (template)"),
        ({"helm_charts": (chart(helm_chart_action="Upgrade"),)}, "helmCharts[0].helmChartAction Upgrade"),
    ],
)
def test_what_is_not_supported_is_told_by_its_name(fields: dict[str, Any], told: str) -> None:
    assert validation.in_spec(ProfileSpec(**fields)) == [told]


def test_a_field_that_nobody_here_has_heard_of_is_told() -> None:
    assert validation.in_spec(ProfileSpec(), raw={"tier": 1, "extraLabels": {}}) == ["extraLabels"]
    refs = [{"kind": "Secret"}, {"kind": "Secret", "skipNamespaceCreation": True}]
    assert validation.in_spec(ProfileSpec(), raw={"policyRefs": refs}) == ["policyRefs[1].skipNamespaceCreation"]


def test_a_dependency_that_is_a_template_is_told() -> None:
    spec = ProfileSpec(depends_on=("base", "{{ .Cluster.metadata.name }}"))
    key = ProfileKey("ClusterProfile", "", "web")
    assert validation.objections(key, spec).unsupported == ("dependsOn[1] (template)",)


@pytest.mark.parametrize(
    ("spec", "effect"),
    [
        (
            ProfileSpec(stop_matching_behavior="Withdraw"),
            "nothing is removed from clusters that stay until it is corrected",
        ),
        (
            ProfileSpec(cluster_deletion_behavior="Enforce"),
            "nothing is removed from clusters that are deleted until it is corrected",
        ),
        (ProfileSpec(sync_mode="Once"), "nothing new is deployed until it is corrected"),
        (ProfileSpec(policy_refs=(PolicyRef(kind="Configmap"),)), "nothing new is deployed until it is corrected"),
        (
            ProfileSpec(set_refs=("prod",)),
            (
                "nothing is removed from clusters that stay, and nothing is deployed to more clusters, until it is"
                " corrected or the profile is deleted"
            ),
        ),
    ],
)
def test_the_condition_says_what_the_unknown_value_holds(spec: ProfileSpec, effect: str) -> None:
    found = validation.objections(ProfileKey("ClusterProfile", "", "web"), spec)
    assert validation.unknown_value(found.unknown, found.clusters).endswith(f"; {effect}")


def test_each_effect_of_several_unknown_values_is_said_once() -> None:
    spec = ProfileSpec(sync_mode="Once", stop_matching_behavior="Withdraw", policy_refs=(PolicyRef(kind="Configmap"),))
    found = validation.objections(ProfileKey("ClusterProfile", "", "web"), spec)
    said = validation.unknown_value(found.unknown, found.clusters)
    assert said.count("nothing new is deployed") == said.count("nothing is removed") == 1


def test_a_source_that_is_a_template_is_told() -> None:
    assert validation.in_source({"a": "b"}) == []
    assert validation.in_source({"projectsveltos.io/template": "x"}) == ["annotation projectsveltos.io/template"]
