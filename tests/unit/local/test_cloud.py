"""What the stand-in for a cloud does for a Service follows from the Service alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.local.cloud import CLEANUP_FINALIZER, CloudStep, next_step


def service(*, kind: str = "LoadBalancer", deleted: bool = False, marked: bool = False, address: bool = False) -> Any:
    return {
        "metadata": {
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}),
            **({"finalizers": [CLEANUP_FINALIZER]} if marked else {}),
        },
        "spec": {"type": kind},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]} if address else {}},
    }


@pytest.mark.parametrize(
    ("it", "step"),
    [
        (service(), CloudStep.FINALIZER),
        (service(marked=True), CloudStep.ADDRESS),
        (service(marked=True, address=True), CloudStep.NOTHING),
        (service(marked=True, address=True, deleted=True), CloudStep.RELEASE),
        (service(marked=True, address=True, kind="ClusterIP"), CloudStep.RELEASE),
        (service(kind="ClusterIP"), CloudStep.NOTHING),
        (service(deleted=True), CloudStep.NOTHING),
    ],
)
def test_each_state_of_a_service_has_its_next_step(it: Any, step: CloudStep) -> None:
    assert next_step(it) is step


@given(st.sampled_from(["LoadBalancer", "ClusterIP"]), st.booleans(), st.booleans(), st.booleans())
def test_no_service_gets_an_address_before_its_finalizer(kind: str, deleted: bool, marked: bool, address: bool) -> None:
    if next_step(service(kind=kind, deleted=deleted, marked=marked, address=address)) is CloudStep.ADDRESS:
        assert marked
