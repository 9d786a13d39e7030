"""Whether Cluster API asks: every way in which it would not, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from unwind.api.capi import ExtensionConfig, ExtensionConfigSpec, ExtensionConfigStatus, ExtensionHandler, RequestHook
from unwind.api.hooks import API_VERSION, Hook
from unwind.api.meta import Condition, LabelSelector, ObjectMeta, SelectorRequirement
from unwind.api.names import Reason
from unwind.capi.extension_config_faults import why_not
from unwind.teardown.deletion_gate import GateFault

NAME = "unwind-system"
OURS = ("before-cluster-delete", "after-control-plane-initialized")


def handler(hook: Hook, name: str = "before-cluster-delete.unwind-system", policy: str = "Fail") -> ExtensionHandler:
    asked = RequestHook(api_version=API_VERSION, hook=hook.value)
    return ExtensionHandler(name=name, request_hook=asked, failure_policy=policy)


HOLDING = handler(Hook.BEFORE_CLUSTER_DELETE)


def config(
    *handlers: ExtensionHandler,
    selector: LabelSelector | None = LabelSelector(),  # noqa: B008 - frozen
    discovered: str | None = "True",
    message: str = "",
) -> ExtensionConfig:
    condition = Condition(type="Discovered", status=discovered or "", message=message)
    return ExtensionConfig(
        metadata=ObjectMeta(name=NAME),
        spec=ExtensionConfigSpec(namespace_selector=selector),
        status=ExtensionConfigStatus(
            handlers=handlers or (HOLDING,), conditions=(condition,) if discovered is not None else ()
        ),
    )


def asked(it: ExtensionConfig | None, **labels: str) -> GateFault | None:
    return why_not(it, name=NAME, handlers=OURS, labels=labels)


def reason(it: ExtensionConfig | None, **labels: str) -> Reason:
    fault = asked(it, **labels)
    assert fault
    return fault.reason


def test_it_is_armed_when_it_is_discovered_for_every_namespace() -> None:
    assert asked(config()) is None
    assert why_not(config(), name=NAME, handlers=OURS, labels=None) is None, "then labels do not matter"


def test_where_there_is_none_it_says_what_to_do() -> None:
    assert asked(None) == GateFault(
        Reason.NOT_REGISTERED, "ExtensionConfig unwind-system not found; run `unwind install`"
    )


def test_one_that_is_being_deleted_counts_for_nothing_whatever_else_it_says() -> None:
    going = ObjectMeta(name=NAME, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    assert reason(msgspec.structs.replace(config(), metadata=going)) is Reason.NOT_REGISTERED


@pytest.mark.parametrize("word", ["False", "Unknown", "", "true"])
def test_one_that_is_not_discovered_says_what_cluster_api_says(word: str) -> None:
    fault = asked(config(discovered=word, message="Error in discovery: no route to host"))
    assert fault
    assert fault.reason is Reason.NOT_DISCOVERED
    assert "no route to host" in fault.message


def test_one_that_cluster_api_has_not_looked_at_is_not_discovered() -> None:
    assert reason(config(discovered=None)) is Reason.NOT_DISCOVERED


@pytest.mark.parametrize(
    "known",
    [
        handler(Hook.AFTER_CONTROL_PLANE_INITIALIZED, "after-control-plane-initialized.unwind-system"),
        handler(Hook.BEFORE_CLUSTER_DELETE, "before-cluster-delete.other"),
        handler(Hook.BEFORE_CLUSTER_DELETE, "somebody-elses.unwind-system"),
        handler(Hook.BEFORE_CLUSTER_CREATE, "before-cluster-delete.unwind-system"),
    ],
)
def test_only_a_handler_of_ours_for_that_hook_holds(known: ExtensionHandler) -> None:
    assert reason(config(known)) is Reason.HANDLER_MISSING


@pytest.mark.parametrize("policy", ["Ignore", "", "fail"])
def test_a_handler_whose_failures_are_not_heeded_does_not_hold(policy: str) -> None:
    ignored = handler(Hook.BEFORE_CLUSTER_DELETE, policy=policy)
    assert reason(config(ignored)) is Reason.FAILURES_IGNORED


def test_without_a_selector_no_namespace_is_selected() -> None:
    assert reason(config(selector=None)) is Reason.NAMESPACE_NOT_SELECTED


@pytest.mark.parametrize(
    ("key", "operator", "values", "labels", "armed"),
    [
        ("a", "In", ("1", "2"), {"a": "1"}, True),
        ("a", "In", ("1", "2"), {"a": "3"}, False),
        ("a", "In", ("1",), {}, False),
        ("a", "NotIn", ("1",), {"a": "2"}, True),
        ("a", "NotIn", ("1",), {}, True),
        ("a", "NotIn", ("1",), {"a": "1"}, False),
        ("a", "Exists", (), {"a": ""}, True),
        ("a", "Exists", (), {"b": "1"}, False),
        ("a", "DoesNotExist", (), {"b": "1"}, True),
        ("a", "DoesNotExist", (), {"a": "1"}, False),
        ("a", "Gt", ("1",), {"a": "2"}, False),
        ("a", "", (), {"a": "2"}, False),
        ("a", "in", ("2",), {"a": "2"}, False),
    ],
)
def test_a_namespace_is_left_out_unless_its_labels_are_known_to_match(
    key: str, operator: str, values: tuple[str, ...], labels: dict[str, str], armed: bool
) -> None:
    one = SelectorRequirement(key=key, operator=operator, values=values)
    it = config(selector=LabelSelector(match_expressions=(one,)))
    assert (asked(it, **labels) is None) is armed
    assert why_not(it, name=NAME, handlers=OURS, labels=None), "labels that are not known match nothing"


def test_every_label_and_every_expression_has_to_match() -> None:
    expression = SelectorRequirement(key="b", operator="Exists")
    it = config(selector=LabelSelector(match_labels={"a": "1"}, match_expressions=(expression,)))
    assert asked(it, a="1", b="x") is None
    assert reason(it, a="1") is Reason.NAMESPACE_NOT_SELECTED
    assert reason(it, a="2", b="x") is Reason.NAMESPACE_NOT_SELECTED
