"""The signature of records: what it covers, what it survives, and what it does not fit."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import RECORD_KEY_SECRET, SIGNATURE_ANNOTATION
from unwind.api.resources import SECRETS
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Plan, Step, Teardown, TeardownSpec
from unwind.errors import UnwindError
from unwind.teardown.signatures import RecordKeys, verify
from unwind.testing.objects import Objects

UID = "u-1"
KEYS = {"key-1": b"a" * 32}
STEP = Step(name="db", object=ObjectRef(kind="ClusterSummary", name="db", uid="s-1"), effort=Effort.ENFORCE, wave=1)
RECORD = Teardown(
    metadata=ObjectMeta(name=UID),
    spec=TeardownSpec(
        title="Cluster fleet/prod",
        target=ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="fleet", name="prod", uid=UID),
        cause=Cause.CLUSTER_DELETED.value,
        requested_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        deadline="30m",
        plan=Plan(steps=(STEP,), waves=1, objects=3),
    ),
)


def keys_of(objects: Objects | None = None, *, keys: dict[str, bytes] = KEYS) -> RecordKeys:
    found = RecordKeys((objects or Objects(resources=(SECRETS, TEARDOWNS))).client, namespace="home")
    found._keys = dict(keys)
    return found


def changed(record: Teardown, **spec: Any) -> Teardown:
    return msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, **spec))


def test_a_signature_survives_the_way_to_the_api_server_and_back() -> None:
    keys = keys_of()
    sent = msgspec.json.encode(manifest(TEARDOWNS, keys.signed(RECORD)))
    back = msgspec.json.decode(sent, type=Teardown)
    assert keys.genuine(back)
    # Status is another's business, and so is metadata but for the name.
    meta = msgspec.structs.replace(back.metadata, uid="t-1", resource_version="7", labels={"a": "b"})
    assert keys.genuine(msgspec.structs.replace(back, metadata=meta))


def test_a_signature_survives_the_defaults_that_the_api_server_fills_in() -> None:
    keys = keys_of()
    body = msgspec.json.decode(msgspec.json.encode(manifest(TEARDOWNS, keys.signed(RECORD))))
    assert "onDeadline" not in body["spec"]
    body["spec"] |= {"onDeadline": "Hold", "requestedBy": ""}
    body["spec"]["plan"] |= {"warnings": []}
    body["spec"]["plan"]["steps"][0] |= {"needs": []}
    assert keys.genuine(msgspec.json.decode(msgspec.json.encode(body), type=Teardown))


def test_no_other_field_of_a_spec_has_a_default_that_is_known_by_its_identity() -> None:
    for kind in (TeardownSpec, Plan, Step, ObjectRef):
        for field in msgspec.structs.fields(kind):
            default = field.default
            assert (kind, field.name) == (TeardownSpec, "on_deadline") or default in ("", 0, (), None, ObjectRef())


@pytest.mark.parametrize(
    "change",
    [
        {"plan": Plan()},
        {"plan": None},
        {"deadline": "1s"},
        {"on_deadline": "Release"},
        {"cause": Cause.UNJOINED.value},
        {"requested_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"target": msgspec.structs.replace(RECORD.spec.target, uid="another")},
    ],
)
def test_a_record_that_was_changed_is_not_genuine(change: dict[str, Any]) -> None:
    signed = keys_of().signed(RECORD)
    assert not keys_of().genuine(changed(signed, **change))


def test_a_record_under_another_name_or_of_another_key_or_manager_is_not_genuine() -> None:
    signed = keys_of().signed(RECORD)
    renamed = msgspec.structs.replace(signed, metadata=msgspec.structs.replace(signed.metadata, name="u-2"))
    assert verify(KEYS, "home", signed)
    assert not verify(KEYS, "home", renamed)
    assert not verify({"key-1": b"b" * 32}, "home", signed)
    assert not verify(KEYS, "elsewhere", signed)
    assert not verify({}, "home", signed)
    for value in ("", ":", "home:", "home", "home:é", f"home:{'0' * 64}"):
        meta = ObjectMeta(name=UID, annotations={SIGNATURE_ANNOTATION: value})
        assert not verify(KEYS, "home", msgspec.structs.replace(RECORD, metadata=meta))


def test_all_keys_verify_and_the_last_one_signs() -> None:
    before = keys_of().signed(RECORD)
    rotated = keys_of(keys=KEYS | {"key-2": b"b" * 32})
    assert rotated.genuine(before)
    assert verify({"key-2": b"b" * 32}, "home", rotated.signed(RECORD))


def test_the_spec_is_verified_once_for_each_generation() -> None:
    keys = keys_of()
    meta = ObjectMeta(name=UID, uid="t-1", generation=1)
    signed = keys.signed(msgspec.structs.replace(RECORD, metadata=meta))
    assert keys.genuine(signed)
    edited = changed(signed, plan=Plan())
    later = msgspec.structs.replace(edited, metadata=msgspec.structs.replace(edited.metadata, generation=2))
    assert not keys.genuine(later)


def test_the_first_name_is_the_uid_and_the_others_are_known_with_the_key_only() -> None:
    first, second, *_ = keys_of().names(UID)
    assert first == UID
    assert second.startswith(f"{UID}-")
    assert list(keys_of().names(UID)) == list(keys_of().names(UID))
    assert list(keys_of(keys={"key-1": b"b" * 32}).names(UID))[1] != second


def test_a_request_is_no_record_of_a_target() -> None:
    keys = keys_of()
    record = keys.signed(RECORD)
    request = keys.signed(changed(RECORD, cause=Cause.REQUESTED.value))
    assert keys.chosen([request, record], UID) is record
    assert keys.chosen([request], UID) is None
    assert keys.chosen([RECORD], UID) is None


def test_a_record_of_another_manager_is_told_from_one_that_nobody_signed() -> None:
    assert not keys_of().is_of_another(RECORD)
    assert not keys_of().is_of_another(keys_of().signed(RECORD))
    other = RecordKeys(Objects(resources=(SECRETS,)).client, namespace="elsewhere")
    other._keys = dict(KEYS)
    assert keys_of().is_of_another(other.signed(RECORD))


async def test_the_first_replica_creates_the_key_and_the_others_read_it() -> None:
    objects = Objects(resources=(SECRETS, TEARDOWNS))
    one, two = (RecordKeys(objects.client, namespace="home") for _ in range(2))
    assert not one.known
    await one.load()
    await two.load()
    assert one._keys == two._keys != {}
    assert two.genuine(one.signed(RECORD))


def secret(**data: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": RECORD_KEY_SECRET, "namespace": "home"},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


async def test_a_secret_without_a_key_is_an_error_and_no_reason_to_judge_records() -> None:
    objects = Objects(resources=(SECRETS, TEARDOWNS))
    objects.put(secret(short=b"abc"))
    keys = RecordKeys(objects.client, namespace="home")
    with pytest.raises(UnwindError, match="holds no valid key"):
        await keys.load()
    assert not keys.known


async def test_a_signature_that_does_not_fit_is_looked_at_with_the_keys_of_now() -> None:
    objects = Objects(resources=(SECRETS, TEARDOWNS))
    objects.put(secret(**{"key-1": b"a" * 32, "key-2": b"b" * 32}))
    keys = keys_of(objects)
    signed = keys_of(keys={"key-2": b"b" * 32}).signed(RECORD)
    assert not keys.genuine(signed)
    assert await keys.verified(signed)
    assert not await keys.verified(RECORD)
