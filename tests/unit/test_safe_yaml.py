"""YAML that would fill the memory or end the process."""

from __future__ import annotations

import pytest
import yaml

from unwind import safe_yaml
from unwind.deploy import manifest_sources
from unwind.errors import UnwindError
from unwind.helm.release_secrets import HelmRelease
from unwind.helm.release_secrets import release_manifests as released
from unwind.kube import kubeconfig

MERGES = "a: &a {k: v}\n" + "".join(
    f"b{i}: &b{i} {{<<: [{', '.join(['*a' if i == 0 else f'*b{i - 1}'] * 9)}]}}\n" for i in range(12)
)
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
BAD = {
    "brackets": "[" * 100_000,
    "braces": "{a: " * 100_000,
    "dashes": "- " * 100_000,
    "questions": "? " * 50_000,
    "lines": "".join(f"{' ' * depth}a:\n" for depth in range(2_000)),
    "merges": MERGES,
    "aliases": ALIASES,
    "circle": "a: &a [*a]",
}
GOOD = ["a: 1", "a: &x {b: c}\nd: *x\ne: {<<: *x, f: g}", "[" * 200 + "]" * 200, "a: '*b & c'", "{}\n" * 300, ""]


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_it_is_refused_before_it_is_loaded(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        safe_yaml.load(text)
    with pytest.raises(UnwindError):
        kubeconfig.parse(text.encode(), source="it")
    with pytest.raises(UnwindError):
        released(HelmRelease(name="it", manifest=text))
    found = manifest_sources.read_manifests(text, "it")
    assert found.faults
    assert not found.manifests


@pytest.mark.parametrize("text", GOOD)
def test_what_is_reasonable_passes(text: str) -> None:
    safe_yaml.check_complexity(text)


def test_one_broken_document_does_not_spoil_those_before_it() -> None:
    good = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: &l {x: y}, annotations: *l}}"
    found = manifest_sources.read_manifests(f"{good}\n---\n[", "it")
    assert [manifest.name for manifest in found.manifests] == ["a"]
    assert len(found.faults) == 1
