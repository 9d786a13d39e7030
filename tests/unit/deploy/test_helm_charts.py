"""A chart as a profile asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.sveltos import HelmChart, ValuesFrom
from unwind.helm import charts
from unwind.helm.charts import HelmOptions


def asked(**fields: Any) -> HelmChart:
    given = {"repository_url": "https://charts.test", "chart_name": "web", "release_name": "web"}
    return HelmChart(**{**given, "release_namespace": "web", **fields})


@pytest.mark.parametrize(
    ("fields", "chart", "repository"),
    [
        ({}, "web", "https://charts.test"),
        ({"repository_name": "mine", "chart_name": "mine/web"}, "web", "https://charts.test"),
        ({"repository_url": "oci://charts.test/all/"}, "oci://charts.test/all/web", ""),
        ({"repository_url": "oci://charts.test/all/web"}, "oci://charts.test/all/web", ""),
        ({"repository_url": "https://charts.test/web-1.0.0.tgz"}, "https://charts.test/web-1.0.0.tgz", ""),
        ({"repository_url": "file:///charts"}, "file:///charts/web", ""),
    ],
)
def test_a_chart_is_found_as_sveltos_users_write_it(fields: dict[str, Any], chart: str, repository: str) -> None:
    read = charts.read_chart(asked(**fields))
    assert (read.chart, read.repository) == (chart, repository)


def test_values_from_elsewhere_come_after_those_of_the_profile() -> None:
    assert charts.read_chart(asked(values="a: 1"), values=("b: 2", "c: 3")).values == ("a: 1", "b: 2", "c: 3")
    assert charts.read_chart(asked(values=" \n"), values=("b: 2",)).values == ("b: 2",)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"values": "name: {{ .Cluster.metadata.name }}"}, "helmCharts.values: templates are not supported"),
        ({"release_name": "{{ x }}"}, "helmCharts.releaseName: templates are not supported"),
        (
            {"values_from": (ValuesFrom(kind="ConfigMap", name="{{ x }}"),)},
            "helmCharts.valuesFrom[0].name: templates are not supported",
        ),
        (
            {"values_from": (ValuesFrom(kind="Bucket", name="x"),)},
            "helmCharts.valuesFrom[0].kind: unknown kind 'Bucket' (valid: ConfigMap, Secret)",
        ),
        (
            {"repository_url": "url://gitrepository/x"},
            "helmCharts.repositoryURL: unsupported scheme 'url' (valid: http, https, oci, file)",
        ),
        ({"options": {"runTests": True}}, "helmCharts.options.runTests: not supported"),
        (
            {"options": {"upgradeOptions": {"force": True}}},
            "helmCharts.options.upgradeOptions.force: not supported",
        ),
        (
            {"options": {"timeout": "soon"}},
            "helmCharts.options.timeout: 'soon' is not a duration (use one such as 5m or 1h30m)",
        ),
        (
            {"options": {"uninstallOptions": {"deletionPropagation": "orphan"}}},
            (
                "helmCharts.options.uninstallOptions.deletionPropagation: 'orphan' would leave dependents behind"
                " (valid: foreground, background)"
            ),
        ),
        (
            {"options": {"labels": {"unwind.dev/owner": "me"}}},
            "helmCharts.options.labels: unwind.dev/owner is reserved for Unwind",
        ),
    ],
)
def test_what_cannot_be_done_is_named(fields: dict[str, Any], why: str) -> None:
    assert charts.unsupported(asked(**fields)) == [why]


def test_defaults_that_a_crd_wrote_are_no_wishes() -> None:
    options = {
        "skipCRDs": False,
        "enableClientCache": False,
        "installOptions": {"createNamespace": True, "replace": True},
        "upgradeOptions": {"force": False, "recreate": False, "maxHistory": 2, "upgradeCRDs": False},
        "uninstallOptions": {"keepHistory": False},
    }
    assert charts.unsupported(asked(options=options)) == []
    assert charts.options(options) == HelmOptions(flags=("--history-max=2",))


def test_options_are_what_helm_calls_them() -> None:
    options = {
        "timeout": "10m0s",
        "wait": True,
        "atomic": True,
        "skipCRDs": True,
        "disableHooks": True,
        "description": "by hand",
        "labels": {"team": "blue"},
        "installOptions": {"createNamespace": False},
        "upgradeOptions": {"maxHistory": 5},
        "uninstallOptions": {"deletionPropagation": "background"},
    }
    assert charts.unsupported(asked(options=options)) == []
    assert charts.options(options) == HelmOptions(
        timeout=600,
        rendering=("--skip-crds", "--no-hooks"),
        flags=("--wait", "--atomic", "--description=by hand", "--history-max=5"),
        create_namespace=False,
        hooks=False,
        cascade="background",
        labels=(("team", "blue"),),
    )


def test_how_it_goes_is_remembered_in_a_word() -> None:
    options = HelmOptions(timeout=600, hooks=False, cascade="background")
    assert options.uninstalling == "600s.no-hooks.background"
    assert HelmOptions.of_uninstalling(options.uninstalling) == options
    assert HelmOptions.of_uninstalling("") == HelmOptions()
    assert HelmOptions.of_uninstalling("for-ever") == HelmOptions()


def test_everything_that_goes_into_a_release_makes_it_another() -> None:
    plain = charts.read_chart(asked())
    others = [
        charts.read_chart(asked(values="a: 1")),
        charts.read_chart(asked(), values=("b: 1",)),
        charts.read_chart(asked(chart_version="2.0.0")),
        charts.read_chart(asked(chart_name="other")),
        charts.read_chart(asked(options={"wait": True})),
    ]
    assert len({item.inputs for item in (plain, *others)}) == len(others) + 1
    assert plain.inputs == charts.read_chart(asked(), order=7).inputs
