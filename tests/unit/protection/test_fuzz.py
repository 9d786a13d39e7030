"""Whatever is sent to the webhook: it is answered under its number, and nothing protected is let go."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.mangling import Bodies
from tests.unit.protection.asking import V1, V1BETA1, Known, Webhook, crd, labelled, review
from unwind.api.names import DELETE_PROTECTION_LABEL as LABEL
from unwind.protection.protected_kinds import KINDS, ProtectedKind
from unwind.protection.webhook_configuration import LABELS_PATH, PROTECTION_PATH

pytestmark = pytest.mark.timeout(900)
BODIES = [1_000, pytest.param(100_000, marks=pytest.mark.soak)]
# By how much the process may grow.
GROWTH = 96 << 20
WORDS = ["v1", V1, V1BETA1, "admission.k8s.io/v2", "apps/v1", "AdmissionReview", "Namespace", "Deployment"]


def valid(chance: random.Random) -> Any:
    """A review as the API server sends it, in most cases of what is protected."""
    kind = chance.choice(KINDS)
    label = chance.choice(["Always", "Always", "Cascading", "always", None])
    more: dict[str, Any] = {}
    if kind.count:
        more[kind.count.path[0]] = {kind.count.path[1]: chance.choice([0, 1, 3, "Bound", ["x"], None])}
    old = crd(label) if kind.kind == "CustomResourceDefinition" else labelled(label, namespace="it", **more)
    if chance.random() < 0.05:
        old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    version = chance.choice([V1, V1BETA1])
    body = review(kind.kind, old, group=kind.group, version=kind.versions[0], review_version=version)
    it = json.loads(body)
    it["request"]["dryRun"] = chance.random() < 0.9
    if chance.random() < 0.1:
        it["request"] |= {"operation": "UPDATE", "object": old}
    return it


def swell(it: Any, chance: random.Random) -> None:
    number = 500 if chance.random() < 0.9 else 20_000
    it["request"]["oldObject"]["metadata"]["annotations"] = {f"k{item}": "v" * 50 for item in range(number)}


def numbered(it: Any) -> str:
    """The number under which it has to be answered; empty where there is none."""
    if not isinstance(it, dict) or it.get("apiVersion") not in (V1, V1BETA1) or not isinstance(it.get("request"), dict):
        return ""
    uid = it["request"].get("uid")
    return uid if isinstance(uid, str) else ""


def protected(it: Any) -> bool:
    """Whether it asks for the deletion of what says of itself that it must stay. Not made by what is tested."""
    request = it["request"]
    old = request.get("oldObject")
    if request.get("operation") != "DELETE" or request.get("subResource") or not isinstance(old, dict):
        return False
    meta = old.get("metadata")
    if not isinstance(meta, dict) or meta.get("deletionTimestamp") or not isinstance(meta.get("labels"), dict):
        return False
    said = meta["labels"].get(LABEL)
    if said == "Cascading":
        return _depended_on(request.get("kind"), old)
    return isinstance(said, str)


def _depended_on(named: Any, old: dict[str, Any]) -> bool:
    kind = next((kind for kind in KINDS if isinstance(named, dict) and _is(kind, named)), None)
    if kind is None:
        return False
    if kind.kind == "Namespace":
        return True  # the caches know of Pods
    if kind.count and kind.count.what == "replicas":
        replicas = spec.get("replicas") if isinstance(spec := old.get("spec"), dict) else None
        # As in OpenKruise, a negative number is none; `True` is no number.
        return isinstance(replicas, bool) or not isinstance(replicas, int) or replicas > 0
    return not kind.cascading


def _is(kind: ProtectedKind, named: dict[str, Any]) -> bool:
    return (named.get("group", ""), named.get("kind", "")) == (kind.group, kind.kind)


def resident() -> int:
    """How much memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("number", BODIES)
async def test_no_review_brings_it_down_or_lets_something_protected_go(number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies = Bodies(seed, valid, words=WORDS, versioned=lambda it: [it, it["request"]["kind"]], swell=swell)
    webhook, seen, chance = Webhook(known=Known(pods=3)), Counter[str](), random.Random(seed)
    before = resident()
    for _ in range(number):
        sort, sent = bodies.next()
        path = PROTECTION_PATH if chance.random() < 0.9 else LABELS_PATH
        response = await webhook.post(sent, path=path)
        answered = json.loads(response.body)
        assert response.status in (200, 400)
        try:
            it = msgspec.json.decode(sent)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            it = None
        uid = numbered(it)
        if response.status == 200:
            allowed = answered["response"]["allowed"]
            assert answered["response"]["uid"] == uid or it is None
            assert answered["apiVersion"] in (V1, V1BETA1)
            if not allowed:
                assert answered["response"]["status"]["code"] in (400, 403)
                assert answered["response"]["status"]["message"]
        else:
            allowed = False
            assert not uid, "it could have been answered under its number"
            assert answered["message"]
        if uid:
            assert answered["apiVersion"] == it["apiVersion"]
            if path == PROTECTION_PATH:
                assert not (allowed and protected(it)), sent
        webhook.server.asked.clear()
        webhook.recorder._pending.clear()
        seen[f"{sort} {response.status} {allowed}"] += 1
    assert resident() - before < GROWTH
    assert seen["valid 200 True"] > number / 1_000, "some of them were let through"
    assert seen["valid 200 False"] > number / 100, "most were not"
    assert seen["truncated 400 False"] > number / 100, "and some not understood"
