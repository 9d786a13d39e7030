"""What `unwind local up` is asked for becomes the shape of a plane, or one line that says what is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from unwind.cli import console
from unwind.cli.local import PARTS, shape_of
from unwind.errors import UnwindError, UsageError
from unwind.local import tools
from unwind.local.build import needed
from unwind.local.home import Shape


def test_parts_are_named_in_one_list() -> None:
    shape = shape_of(members=2, with_="nodes, capi", cloud_delay=1.0)
    assert shape == Shape(members=2, nodes=True, capi=True, cloud_delay=1.0)
    assert shape.parts == ["nodes", "capi"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"members": 0, "with_": "nodes,unicorns", "cloud_delay": 0.0}, "unknown component unicorns"),
        ({"members": -1, "with_": "", "cloud_delay": 0.0}, "invalid --members -1"),
        ({"members": 0, "with_": "", "cloud_delay": -0.5}, "invalid --cloud-delay -0.5"),
        ({"members": 0, "with_": "nodes", "cloud_delay": 0.0, "image": Path("none.tar")}, "invalid --image none.tar"),
        ({"members": 0, "with_": "capi", "cloud_delay": 0.0, "image": Path(__file__)}, "needs kube-scheduler"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(UnwindError, match=words):
        shape_of(**asked)  # type: ignore[arg-type]


def test_only_what_is_asked_for_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNWIND_KUBERNETES", raising=False)
    least = {tools.ETCD, tools.KUBE_APISERVER, tools.KUBE_CONTROLLER_MANAGER}
    assert set(needed(Shape(members=3, cloud=True))) == least
    assert set(needed(Shape(nodes=True))) == least | {tools.KUBE_SCHEDULER, tools.KWOK}
    assert set(needed(Shape(capi=True))) == least | {tools.CLUSTER_API_MANAGER}
    assert set(needed(Shape(helm=True))) == least | {tools.HELM}
    assert set(PARTS) == {"nodes", "helm", "capi", "cloud"}


@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_servers_of_another_minor_version_are_exactly_of_that_version_and_the_rest_stays(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWIND_KUBERNETES", "1.35" if by == "variable" else "1.36")
    asked = "1.35" if by == "option" else ""
    shape = shape_of(members=1, with_="nodes,capi", cloud_delay=1.0, kubernetes=asked)
    found = {tool.name: tool for tool in needed(shape)}
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert found[name].module.version.startswith("v1.35.")
        assert found[name].exact
    assert {tools.ETCD, tools.KWOK, tools.CLUSTER_API_MANAGER} < set(found.values())


def test_a_minor_version_that_cannot_be_built_is_refused_with_those_that_can() -> None:
    with pytest.raises(
        UsageError, match=r"cannot build Kubernetes 1\.19 \(valid: 1\.36, 1\.35\); .*UNWIND_KUBE_APISERVER"
    ):
        needed(Shape(kubernetes="1.19"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200000, "2d")]
)
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert console.age(1_000_000.0 - seconds) == text
