"""The Helm chart: it has the same objects as `unwind install --image`, and its generated templates are current."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from unwind.api.features import ALL, DEFAULT, GATED, Feature
from unwind.api.meta import LabelSelector
from unwind.api.rights import Setting
from unwind.api.workload import ManagerWorkload
from unwind.install import chart, monitoring, uninstall_hook, workload
from unwind.install.manifests import called, manifests
from unwind.local import tools
from unwind.server.manager_names import REGISTRATION_KEY

Object = dict[str, Any]

CHART = Path(__file__).parents[2] / "charts" / "unwind"
KEEP = "helm.sh/resource-policy"


def helm(*arguments: str) -> str:
    found = tools.find_binary(tools.HELM)
    assert found, "`make setup` builds it"
    done = subprocess.run([found.path, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def rendered(namespace: str, tmp_path: Path, values: Object) -> dict[str, Object]:
    """The objects that Helm renders, by kind and name."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    options = ("--namespace", namespace, "--values", str(file), "--kube-version=1.34.0")
    return by_name(yaml.safe_load_all(helm("template", "release", str(CHART), *options)))


def by_name(objects: Any) -> dict[str, Object]:
    return {f"{item['kind']} {called(item)}": comparable(item) for item in objects if item}


def comparable(item: Object) -> Object:
    """The object without what Helm alone needs, and with the document in the ConfigMap as a value."""
    item = msgspec.json.decode(msgspec.json.encode(item))
    annotations = item["metadata"].get("annotations", {})
    if annotations.pop(KEEP, "") and not annotations:
        del item["metadata"]["annotations"]
    if REGISTRATION_KEY in item.get("data", {}):
        item["data"][REGISTRATION_KEY] = json.loads(item["data"][REGISTRATION_KEY])
    return item


MANY = {
    "image": {"registry": "registry.example:5000", "repository": "team/unwind", "digest": f"sha256:{'a' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "features": sorted(ALL),
    "replicas": 3,
    "args": ["--keep-teardowns=1d"],
    "env": [{"name": "UNWIND_LOG_FORMAT", "value": "json"}],
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": 'a "quoted" <text>'},
    "proxy": {"http": "http://proxy:1", "https": "http://proxy:2", "noProxy": "10.0.0.0/8"},
    "extraCAConfigMap": "our-cas",
    "archive": {"existingClaim": "records", "subPath": "unwind"},
    "uninstallArgs": ["--leave-addons"],
    "hooks": {
        "namespaceSelector": {"matchLabels": {"hold": "yes"}},
        "settings": {"a": "b"},
    },
}
SETTINGS = {
    "by default": ({}, Setting(features=DEFAULT, workload=ManagerWorkload(image=f"unwind:{version('kube-unwind')}"))),
    "with many values": (
        MANY,
        Setting(
            namespace="elsewhere",
            namespace_selector=LabelSelector(match_labels={"hold": "yes"}),
            hook_settings={"a": "b"},
            workload=ManagerWorkload(
                image=f"registry.example:5000/team/unwind@sha256:{'a' * 64}",
                replicas=3,
                pull_secrets=[{"name": "pull"}],
                args=["--keep-teardowns=1d", "--archive=/var/lib/unwind/archive"],
                volumes=[{"name": "archive", "persistentVolumeClaim": {"claimName": "records"}}],
                volume_mounts=[{"name": "archive", "mountPath": "/var/lib/unwind/archive", "subPath": "unwind"}],
                env=[{"name": "UNWIND_LOG_FORMAT", "value": "json"}],
                resources={"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                node_selector={"pool": "infra"},
                tolerations=[{"key": "infra", "operator": "Exists"}],
                priority_class="system-cluster-critical",
                pod_labels={"team": "platform"},
                pod_annotations={"note": 'a "quoted" <text>'},
                http_proxy="http://proxy:1",
                https_proxy="http://proxy:2",
                no_proxy="10.0.0.0/8",
                extra_ca="our-cas",
                uninstall_args=["--leave-addons"],
            ),
        ),
    ),
}


_ALONE = sorted(ALL - GATED)
SETTINGS |= {
    f"with {', '.join(sorted(some)) or 'no feature'}": (
        {"features": sorted(some)},
        Setting(features=some, workload=ManagerWorkload(image=f"unwind:{version('kube-unwind')}")),
    )
    for some in map(frozenset, ((), *((one,) for one in _ALONE), *((one, Feature.CAPI) for one in sorted(GATED))))
}


@pytest.mark.parametrize("case", SETTINGS)
def test_the_chart_has_the_objects_of_install_and_the_hook_of_uninstall(case: str, tmp_path: Path) -> None:
    values, setting = SETTINGS[case]
    assert setting.workload
    installed = [item for item in manifests(setting) if item["kind"] not in ("Namespace", "APIService")]
    hook = uninstall_hook.hook_objects(setting, setting.workload)
    found, wanted = rendered(setting.namespace, tmp_path, values), by_name([*installed, *hook])
    assert found.keys() == wanted.keys()
    for name, item in wanted.items():
        assert found[name] == item, name


def test_what_refuses_requests_or_calls_the_manager_is_not_in_the_chart(tmp_path: Path) -> None:
    kinds = {name.split()[0] for name in rendered("unwind-system", tmp_path, {})}
    assert not [kind for kind in kinds if "Webhook" in kind or "Admission" in kind or kind == "ExtensionConfig"]


def test_crds_are_kept_when_the_chart_is_uninstalled() -> None:
    crds = list(yaml.safe_load_all(helm("template", "release", str(CHART), "--kube-version=1.34.0")))
    found = [item for item in crds if item["kind"] == "CustomResourceDefinition"]
    assert found
    assert all(item["metadata"]["annotations"][KEEP] == "keep" for item in found)


def test_the_generated_templates_are_current() -> None:
    for name, text in chart.templates().items():
        assert (CHART / "templates" / name).read_text() == text, "run `make chart`"
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == version("kube-unwind")


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": "two"},
        {"image": {"digest": "sha256:1"}},
        {"replica": 1},
        {"features": ["addons"]},
        {"features": ["x"]},
        {"hooks": {"settings": {"a": 1}}},
        {"podLabels": {"a": 1}},
        {"podLabels": dict.fromkeys(workload.SELECTOR, "other")},
    ],
)
def test_values_that_are_not_known_are_refused(wrong: Object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications"):
        rendered("unwind-system", tmp_path, wrong)


def test_the_objects_for_monitoring_are_those_of_the_code(tmp_path: Path) -> None:
    without = rendered("unwind-system", tmp_path, {})
    found = rendered("unwind-system", tmp_path, {"monitoring": {"enabled": True, "labels": {"release": "p"}}})
    wanted = by_name(monitoring.monitoring_objects("unwind-system", labels={"release": "p"}))
    assert {name: item for name, item in found.items() if name not in without} == wanted
    alert = found["PrometheusRule unwind-system/unwind"]["spec"]["groups"][0]["rules"][0]
    assert "{{ $labels" in str(alert), "an expression of Prometheus, which Helm does not evaluate"


def test_the_network_policy_can_be_left_out(tmp_path: Path) -> None:
    found = rendered("unwind-system", tmp_path, {"networkPolicy": {"enabled": False}})
    assert not [name for name in found if name.startswith("NetworkPolicy")]


def test_the_chart_has_no_mistakes() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--kube-version=1.34.0")
