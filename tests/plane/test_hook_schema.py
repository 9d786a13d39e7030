"""Every request and response of a hook is valid by Cluster API's own schema, taken from its Go module."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plane.support import hook_schema
from tests.unit.capi.answering import Standin
from tests.unit.capi.asked import cluster, request
from unwind.api.hooks import API_VERSION, REQUESTS, Hook
from unwind.capi import hook_protocol
from unwind.hooks import Rule, Wait

if TYPE_CHECKING:
    from tests.plane.support.hook_schema import Schema

OTHERS = {
    "GeneratePatches",
    "ValidateTopology",
    "DiscoverVariables",
    "CanUpdateMachine",
    "CanUpdateMachineSet",
    "UpdateMachine",
    "GenerateUpgradePlan",
}
"""The hooks of Cluster API that are not part of the lifecycle of a Cluster. Unwind does not serve them."""

VERSIONS: dict[str, Any] = {
    "fromKubernetesVersion": "v1.30.0",
    "toKubernetesVersion": "v1.33.0",
    "kubernetesVersion": "v1.31.0",
    "controlPlaneUpgrades": [{"version": "v1.31.0"}, {"version": "v1.32.3"}, {"version": "v1.33.0"}],
    "workersUpgrades": [{"version": "v1.32.3"}, {"version": "v1.33.0"}],
}
"""The fields of the example requests in the documentation of Cluster API."""


@pytest.fixture(scope="module")
def schema() -> Schema:
    return hook_schema.load()


def full_request(schema: Schema, hook: Hook) -> dict[str, Any]:
    """A request with every field that its schema has."""
    known = schema.resolved(schema.hooks[hook].request.schema)["properties"]
    more = {name: value for name, value in VERSIONS.items() if name in known}
    made = request(hook, settings={"some": "setting"}, **more)
    assert made.keys() == known.keys(), "the test fills in all fields"
    return made


def test_unwind_serves_every_lifecycle_hook_of_cluster_api_at_its_path(schema: Schema) -> None:
    assert schema.hooks.keys() - OTHERS == {"Discovery", *(hook.value for hook in Hook)}
    assert schema.hooks["Discovery"].path == hook_protocol.DISCOVERY_PATH
    for hook in Hook:
        assert hook_protocol.path(hook) == f"{schema.hooks[hook].path}/{hook_protocol.handler(hook)}"


@pytest.mark.parametrize("hook", Hook)
def test_a_request_is_read_with_all_fields_of_the_schema(schema: Schema, hook: Hook) -> None:
    sent = full_request(schema, hook)
    assert schema.violations(hook, schema.hooks[hook].request, sent) == []
    known = schema.resolved(schema.hooks[hook].request.schema)["properties"]
    assert set(REQUESTS[hook].__struct_encode_fields__) == known.keys()
    read = json.loads(msgspec.json.encode(hook_protocol.hook_request(hook, json.dumps(sent).encode())))
    assert {name: read[name] for name in sent if name != "cluster"} == {
        name: value for name, value in sent.items() if name != "cluster"
    }
    assert read["cluster"]["metadata"]["uid"] == sent["cluster"]["metadata"]["uid"]


@pytest.mark.parametrize("hook", Hook)
def test_the_answers_to_go_on_and_to_wait_are_valid(schema: Schema, hook: Hook) -> None:
    response = schema.hooks[hook].response
    blocks = "retryAfterSeconds" in schema.resolved(response.schema)["properties"]
    assert blocks is hook.blocks
    for answer in (hook_protocol.go_on(hook), hook_protocol.wait(hook, "waiting", 10)):
        assert schema.violations(hook, response, json.loads(answer.body)) == []


def test_the_answer_to_discovery_is_valid(schema: Schema) -> None:
    discovery = schema.hooks["Discovery"]
    sent = {"apiVersion": API_VERSION, "kind": "DiscoveryRequest"}
    assert schema.violations("Discovery", discovery.request, sent) == []
    answer = json.loads(hook_protocol.discovered(json.dumps(sent).encode(), Hook).body)
    assert schema.violations("Discovery", discovery.response, answer) == []
    assert {item["requestHook"]["hook"] for item in answer["handlers"]} == {hook.value for hook in Hook}


@pytest.mark.parametrize("hook", Hook)
@pytest.mark.parametrize("outcome", ["go on", "wait", "fail"])
async def test_what_the_handlers_answer_is_valid_whatever_a_rule_says(schema: Schema, hook: Hook, outcome: str) -> None:
    async def decide(*_: Any) -> Wait | None:
        if outcome == "fail":
            raise RuntimeError("broken")
        return Wait("not yet", seconds=5) if outcome == "wait" else None

    standin = Standin(rules=[Rule(name="rule", hook=hook, decide=decide)])
    told = await standin.post(hook_protocol.path(hook), json.dumps(full_request(schema, hook)).encode())
    answer = json.loads(told.body)
    assert schema.violations(hook, schema.hooks[hook].response, answer) == []
    assert bool(answer.get("retryAfterSeconds")) is (outcome != "go on" and hook.blocks)
    route = standin.routes[hook_protocol.path(hook)]
    for reserve in (route.late, route.busy):
        assert reserve
        assert schema.violations(hook, schema.hooks[hook].response, json.loads(reserve.body)) == []


def test_what_is_not_in_the_schema_is_found(schema: Schema) -> None:
    hook = Hook.BEFORE_CLUSTER_UPGRADE
    known = schema.hooks[hook]

    def faults(message: hook_schema.Message, body: dict[str, Any]) -> list[str]:
        return schema.violations(hook, message, body)

    sent = full_request(schema, hook)
    assert faults(known.request, sent | {"kubernetesVersion": "v1"}) == [".kubernetesVersion: unknown field"]
    assert faults(known.request, {name: sent[name] for name in sent if name != "toKubernetesVersion"}) == [
        ".toKubernetesVersion: missing"
    ]
    assert faults(known.request, sent | {"workersUpgrades": [{}]}) == [".workersUpgrades[0].version: missing"]
    assert faults(known.request, sent | {"settings": {"a": 1}}) == [".settings.a: expected string, found 1"]
    misspelt = cluster()
    misspelt["spec"]["topology"]["klass"] = "stub"
    assert faults(known.request, sent | {"cluster": misspelt}) == [".cluster.spec.topology.klass: unknown field"]

    answer = json.loads(hook_protocol.wait(hook, "waiting", 10).body)
    assert faults(known.response, answer | {"status": "Wait"}) == [
        ".status: expected one of ['Success', 'Failure'], found 'Wait'"
    ]
    assert faults(known.response, answer | {"retryAfterSeconds": True}) == [
        ".retryAfterSeconds: expected integer, found True"
    ]
    assert faults(known.response, answer | {"retryAfterSeconds": 2**31}) == [
        f".retryAfterSeconds: {2**31} is not an int32"
    ]
    assert faults(known.response, answer | {"kind": "Response"}) == [
        "kind: expected 'BeforeClusterUpgradeResponse', found 'Response'"
    ]
