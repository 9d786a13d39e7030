"""What Cluster API sends is understood in both versions, and what it is answered is what it knows."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.capi.asked import UID, V1BETA1, V1BETA2, body, cluster, request
from unwind.api.hooks import (
    API_VERSION,
    REQUESTS,
    AfterClusterUpgrade,
    AfterWorkersUpgrade,
    BeforeClusterUpgrade,
    Hook,
    Upgrade,
)
from unwind.capi import hook_protocol
from unwind.capi.hook_protocol import MalformedError

DELETE = Hook.BEFORE_CLUSTER_DELETE


def test_each_hook_is_asked_at_a_path_of_its_own_in_lower_case() -> None:
    paths = [hook_protocol.path(hook) for hook in Hook]
    assert len({*paths, hook_protocol.DISCOVERY_PATH}) == 10
    assert all(path == path.lower() for path in paths)
    assert hook_protocol.path(DELETE) == (
        "/hooks.runtime.cluster.x-k8s.io/v1alpha1/beforeclusterdelete/before-cluster-delete"
    )


def test_discovery_names_each_handler_with_all_it_says() -> None:
    asked = json.dumps({"apiVersion": API_VERSION, "kind": "DiscoveryRequest"}).encode()
    answer = json.loads(hook_protocol.discovered(asked, Hook).body)
    assert (answer["apiVersion"], answer["kind"], answer["status"]) == (API_VERSION, "DiscoveryResponse", "Success")
    assert [item["requestHook"] for item in answer["handlers"]] == [
        {"apiVersion": API_VERSION, "hook": hook.value} for hook in Hook
    ]
    names = [item["name"] for item in answer["handlers"]]
    assert len(set(names)) == 9
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)
    assert {(item["timeoutSeconds"], item["failurePolicy"]) for item in answer["handlers"]} == {(10, "Fail")}


@pytest.mark.parametrize("hook", Hook)
@pytest.mark.parametrize("version", [V1BETA1, V1BETA2])
def test_every_hook_is_understood_with_a_cluster_of_either_version(hook: Hook, version: str) -> None:
    asked = hook_protocol.hook_request(hook, body(hook, cluster=cluster(version=version), settings={"a": "b"}))
    assert type(asked) is REQUESTS[hook]
    assert (asked.cluster.metadata.uid, asked.cluster.class_name, asked.settings) == (UID, "stub", {"a": "b"})


def test_the_requests_of_upgrades_have_all_their_fields() -> None:
    steps = {
        "fromKubernetesVersion": "v1.30.0",
        "toKubernetesVersion": "v1.33.0",
        "controlPlaneUpgrades": [{"version": "v1.31.0"}, {"version": "v1.33.0"}],
        "workersUpgrades": [{"version": "v1.33.0"}],
    }
    before = hook_protocol.hook_request(Hook.BEFORE_CLUSTER_UPGRADE, body(Hook.BEFORE_CLUSTER_UPGRADE, **steps))
    assert isinstance(before, BeforeClusterUpgrade)
    assert (before.from_kubernetes_version, before.to_kubernetes_version) == ("v1.30.0", "v1.33.0")
    assert before.control_plane_upgrades == (Upgrade(version="v1.31.0"), Upgrade(version="v1.33.0"))
    assert before.workers_upgrades == (Upgrade(version="v1.33.0"),)
    hook = Hook.AFTER_WORKERS_UPGRADE
    after = hook_protocol.hook_request(
        hook, body(hook, kubernetesVersion="v1.31.0", workersUpgrades=[{"version": "v1.33.0"}])
    )
    assert isinstance(after, AfterWorkersUpgrade)
    assert (after.kubernetes_version, after.workers_upgrades) == ("v1.31.0", (Upgrade(version="v1.33.0"),))
    hook = Hook.AFTER_CLUSTER_UPGRADE
    last = hook_protocol.hook_request(hook, body(hook, kubernetesVersion="v1.33.0"))
    assert isinstance(last, AfterClusterUpgrade)
    assert last.kubernetes_version == "v1.33.0"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"not json", "malformed"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"apiVersion":"\xff"}', "can't decode"),
        (b'{"a":' * 200_000, "recursion"),
        (b'{"cluster":' + b"[" * 200_000, "Expected `object`"),
        (body(Hook.BEFORE_CLUSTER_CREATE), "instead of 'BeforeClusterDeleteRequest'"),
        (body(apiVersion="hooks.runtime.cluster.x-k8s.io/v1beta1"), "instead of 'BeforeClusterDeleteRequest' of"),
        (body(kind=7), "Expected `str`, got `int` - at `$.kind`"),
        (body(cluster=None), "got `null` - at `$.cluster`"),
        (json.dumps({"apiVersion": API_VERSION, "kind": "BeforeClusterDeleteRequest"}).encode(), "`cluster`"),
        (body(settings={"a": 1}), "at `$.settings"),
        (body(cluster=cluster(version="cluster.x-k8s.io/v1alpha4")), "this one supports cluster.x-k8s.io/v1beta2"),
        (body(cluster=cluster() | {"kind": "Machine"}), "kind 'Machine' (apiVersion 'cluster.x-k8s.io/v1beta2')"),
        (body(cluster={}), "(apiVersion '')"),
        (body(cluster=cluster() | {"metadata": []}), "metadata"),
        (body(cluster=cluster() | {"spec": {"topology": "big"}}), "topology"),
        (body(cluster=cluster(name="")), "invalid cluster name ''"),
        (body(cluster=cluster(namespace="a/b")), "invalid cluster namespace 'a/b'"),
        (body(cluster=cluster(uid="../nodes")), "invalid cluster uid '../nodes'"),
        (body(cluster=cluster(uid="a,b=c")), "invalid cluster uid"),
    ],
)
def test_what_is_no_request_of_the_hook_is_refused_and_said_why(sent: bytes, said: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(said)):
        hook_protocol.hook_request(DELETE, sent)


@pytest.mark.parametrize("sent", [b"", b"[]", b"{}", json.dumps(request()).encode()])
def test_what_is_no_request_for_discovery_is_refused(sent: bytes) -> None:
    with pytest.raises(MalformedError):
        hook_protocol.discovered(sent, Hook)


@pytest.mark.parametrize("hook", [hook for hook in Hook if hook.blocks])
@pytest.mark.parametrize("seconds", [-3, 0, 1, 7])
def test_a_blocking_answer_never_lets_go_by_its_seconds(hook: Hook, seconds: int) -> None:
    answer = hook_protocol.wait(hook, "for you", seconds)
    assert answer.status == 200
    assert json.loads(answer.body) == {
        "apiVersion": API_VERSION,
        "kind": f"{hook.value}Response",
        "status": "Success",
        "message": "for you",
        "retryAfterSeconds": max(1, seconds),
    }


def test_what_cannot_be_told_to_wait_has_no_seconds() -> None:
    hook = Hook.AFTER_CONTROL_PLANE_INITIALIZED
    for answer in (hook_protocol.go_on(hook), hook_protocol.wait(hook, "in vain", 5)):
        told = json.loads(answer.body)
        assert (answer.status, told["status"]) == (200, "Success")
        assert "retryAfterSeconds" not in told


def test_a_glance_tells_the_cluster_of_what_is_understood_and_of_nothing_else() -> None:
    for version in (V1BETA1, V1BETA2):
        assert hook_protocol.glance(DELETE, body(cluster=cluster(version=version))) == UID
    strange = [
        b"",
        b"{",
        b"[" * 200_000,
        b'{"apiVersion":"\xff"}',
        body(Hook.BEFORE_CLUSTER_CREATE),
        body(apiVersion="v1"),
        body(cluster=cluster(version="cluster.x-k8s.io/v1alpha4")),
        body(cluster=cluster() | {"kind": "Machine"}),
        body(cluster=cluster() | {"metadata": {}}),
    ]
    assert {hook_protocol.glance(DELETE, item) for item in strange} == {""}
