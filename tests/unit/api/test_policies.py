"""The kind TeardownPolicy: what its schema refuses, and what is read all the same."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.api.crds import DEFINITIONS
from unwind.api.fields import Unknown
from unwind.api.policies import TEARDOWN_POLICIES, SourceKind, TeardownPolicy

EXAMPLE: dict[str, Any] = {
    "metadata": {"name": "production", "uid": "1", "generation": 3},
    "spec": {
        "clusterSelector": {"matchLabels": {"env": "prod"}},
        "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
        "sources": [
            {"kind": "Flux", "effort": "Enforce", "namespaces": ["flux-system"]},
            {"kind": "Helm", "effort": "Try", "selector": {"namespaces": ["payments"], "names": ["*"]}},
        ],
        "order": [["grafana"], ["postgres-operator"]],
        "deadline": "2h",
        "onDeadline": "Hold",
    },
}


def schema() -> dict[str, Any]:
    [definition] = [item for item in DEFINITIONS if item.resource == TEARDOWN_POLICIES]
    [version] = definition.custom_resource_definition()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def test_a_policy_is_read_as_it_is_written() -> None:
    found = msgspec.convert(EXAMPLE, TeardownPolicy)
    assert msgspec.json.decode(msgspec.json.encode(found.spec)) == {
        key: value for key, value in EXAMPLE["spec"].items() if key != "onDeadline"
    }, "Hold is the default"
    assert found.spec.cluster_selector.satisfied_by({"env": "prod"})
    assert found.spec.namespace_selector is not None
    assert not found.spec.namespace_selector.satisfied_by({})


def test_unknown_words_are_refused_by_the_schema_and_can_be_read() -> None:
    source = schema()["spec"]["properties"]["sources"]["items"]["properties"]
    assert source["kind"]["enum"] == ["Flux", "HelmReleaseProxy", "Helm", "Profile", "Work"]
    assert source["effort"]["enum"] == ["Leave", "Try", "Enforce"]
    assert schema()["spec"]["properties"]["onDeadline"]["enum"] == ["Hold", "Release"]
    for selector in ("clusterSelector", "namespaceSelector"):
        requirement = schema()["spec"]["properties"][selector]["properties"]["matchExpressions"]["items"]["properties"]
        assert requirement["operator"]["enum"] == ["In", "NotIn", "Exists", "DoesNotExist"]
    found = msgspec.convert({"spec": {"sources": [{"kind": "Argo", "effort": "Enforce"}]}}, TeardownPolicy)
    assert SourceKind.read(found.spec.sources[0].kind) == Unknown("Argo", "Flux, HelmReleaseProxy, Helm, Profile, Work")


def test_a_missing_namespace_selector_is_not_an_empty_one() -> None:
    missing = msgspec.convert({"spec": {}}, TeardownPolicy)
    empty = msgspec.convert({"spec": {"namespaceSelector": {}}}, TeardownPolicy)
    assert missing.spec.namespace_selector is None
    assert empty.spec.namespace_selector is not None
    assert empty.spec.namespace_selector.empty
