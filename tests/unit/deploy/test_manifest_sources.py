"""Manifests out of YAML."""

from __future__ import annotations

import pytest

from unwind.deploy.manifest_sources import Manifest, read_manifests

ONE = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}"
TWO = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: two, namespace: web}}"


def names(text: str) -> list[str]:
    found = read_manifests(text, "k")
    assert found.faults == []
    return [manifest.name for manifest in found.manifests]


def fault(text: str) -> str:
    found = read_manifests(text, "k")
    assert found.manifests == []
    [told] = found.faults
    return told


def test_a_text_holds_many_documents_and_empty_ones_do_not_count() -> None:
    text = f"# nothing\n---\n{ONE}\n---\n---\n{TWO}\n---\n# nothing\n"
    assert names(text) == ["one", "two"]
    assert names("") == []


def test_a_manifest_knows_what_it_is() -> None:
    [one] = read_manifests(TWO, "k").manifests
    assert (one.group, one.version, one.kind, one.namespace, one.name) == ("apps", "v1", "Deployment", "web", "two")
    [core] = read_manifests(ONE, "k").manifests
    assert (core.group, core.version, core.namespace) == ("", "v1", "")
    assert core.place == "key k, document 1"


def test_a_list_is_unfolded() -> None:
    nested = f"{{apiVersion: v1, kind: List, items: [{ONE}, {{apiVersion: v1, kind: List, items: [{TWO}]}}]}}"
    assert names(nested) == ["one", "two"]
    typed = "{apiVersion: v1, kind: ConfigMapList, metadata: {}, items: [{metadata: {name: one}}]}"
    [one] = read_manifests(typed, "k").manifests
    assert (one.kind, one.body["apiVersion"]) == ("ConfigMap", "v1")


def test_a_kind_that_is_called_a_list_is_none() -> None:
    assert names("{apiVersion: a/v1, kind: AllowList, metadata: {name: mine}, items: [a]}") == ["mine"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]", "not an object"),
        ("a: [", "invalid YAML"),
        ("{kind: ConfigMap, metadata: {name: a}}", "apiVersion is required"),
        ("{apiVersion: v1, metadata: {name: a}}", "kind is required"),
        ("{apiVersion: v1, kind: ConfigMap}", "metadata is required"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {}}", "metadata.name is required"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: 5}}", "metadata.name is required"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {generateName: a-}}", "with generateName"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: [a]}}", "metadata.labels is not a mapping"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: !!set {a}}", "not supported in JSON"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: !mine a}", "invalid YAML"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, x: .nan}", "not a JSON number"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    told = fault(text)
    assert told.startswith("key k, document 1: ")
    assert said in told


def test_one_wrong_document_does_not_spoil_the_others() -> None:
    found = read_manifests(f"{ONE}\n---\n!mine a\n---\nkind: X\n---\n{TWO}\n---\na: [", "k")
    assert [manifest.name for manifest in found.manifests] == ["one", "two"]
    assert [fault.split(":")[0] for fault in found.faults] == [f"key k, document {number}" for number in (2, 3, 5)]


def test_nothing_of_a_confidential_text_is_in_what_is_told() -> None:
    text = "password: sesame: [\n"
    assert "sesame" not in read_manifests(text, "k", confidential=True).faults[0]
    assert "line 1" in read_manifests(text, "k", confidential=True).faults[0]
    assert "sesame" not in read_manifests("!sesame a", "k", confidential=True).faults[0]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        ("22:30", "22:30"),
        ("1:30.5", "1:30.5"),
        ("=", "="),
        ("0644", 0o644),
        ("0x10", 16),
        ("12", 12),
        ("-12", -12),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1.2.3", "1.2.3"),
        ("v1", "v1"),
        ("yes", True),
        ("~", None),
        ("100m", "100m"),
        ("'12'", "12"),
    ],
)
def test_a_scalar_is_what_kubectl_takes_it_for(written: str, value: object) -> None:
    [one] = read_manifests(f"{{apiVersion: v1, kind: C, metadata: {{name: a}}, x: {written}}}", "k").manifests
    assert one.body["x"] == value
    assert type(one.body["x"]) is type(value)


def test_keys_are_texts() -> None:
    [one] = read_manifests("{apiVersion: v1, kind: C, metadata: {name: a}, data: {2: a, on: b}}", "k").manifests
    assert one.body["data"] == {"2": "a", "true": "b"}


def test_what_the_api_server_sets_is_left_out() -> None:
    text = (
        "{apiVersion: v1, kind: C, metadata: {name: a, uid: u, resourceVersion: '1', managedFields: [],"
        " creationTimestamp: null, labels: null, finalizers: [f]}}"
    )
    [one] = read_manifests(text, "k").manifests
    assert one.body["metadata"] == {"name": "a", "finalizers": ["f"]}


def test_aliases_that_grow_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    assert "aliases expand to too many" in fault("\n".join(lines))
    assert "an alias refers to its own parent" in fault("a: &a [*a]")


def test_merge_keys_are_merged() -> None:
    text = "apiVersion: v1\nkind: C\nmetadata: {name: a}\nbase: &b {x: 1}\ndata: {<<: *b, y: 2}\n"
    found: list[Manifest] = read_manifests(text, "k").manifests
    assert found[0].body["data"] == {"x": 1, "y": 2}
