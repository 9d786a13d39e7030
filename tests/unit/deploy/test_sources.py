"""What a ConfigMap or a Secret holds."""

from __future__ import annotations

import base64

from unwind.deploy.manifest_sources import ManifestSource, parse_source

ONE = "{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}}"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_every_key_of_a_config_map_is_read_in_the_same_order_each_time() -> None:
    held = {"data": {"b": ONE % "b", "a": ONE % "a"}, "binaryData": {"c": encoded(ONE % "c")}}
    source = parse_source(ManifestSource(kind="ConfigMap", namespace="fleet", name="s"), held)
    assert [manifest.name for manifest in source.manifests] == ["a", "b", "c"]
    assert source.faults == ()


def test_a_secret_is_decoded() -> None:
    source = parse_source(
        ManifestSource(kind="Secret", namespace="fleet", name="s"), {"data": {"a": encoded(ONE % "a")}}
    )
    assert [manifest.name for manifest in source.manifests] == ["a"]


def test_a_source_may_be_empty() -> None:
    assert parse_source(ManifestSource(kind="Secret", namespace="fleet", name="s"), {}).manifests == ()


def test_a_fault_names_the_source_the_key_and_the_document() -> None:
    held = {"data": {"a": "kind: X", "b": ONE % "b"}, "binaryData": {"c": base64.b64encode(b"\xff").decode()}}
    source = parse_source(ManifestSource(kind="ConfigMap", namespace="fleet", name="s"), held)
    assert source.faults == (
        "ConfigMap fleet/s, key a, document 1: apiVersion is required",
        "ConfigMap fleet/s, key c: not valid UTF-8 text; correct its encoding",
    )
    assert [manifest.name for manifest in source.manifests] == ["b"]
