"""How a rule is made known: a marked function, a module, or several of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from unwind.api.hooks import Hook
from unwind.errors import UnwindError
from unwind.hooks import HookContext, Wait, hook, rules


async def wait_for_friday(request: Any, ctx: HookContext[Any]) -> Wait | None:
    """Only on Fridays.

    And not before.
    """
    return Wait("Friday")


def test_a_marked_function_is_a_rule_called_after_it_and_can_still_be_called() -> None:
    marked = hook(Hook.BEFORE_CLUSTER_UPGRADE, settings=dict)(wait_for_friday)
    assert marked is wait_for_friday
    [rule] = rules(marked, source="others 1.0")
    assert (rule.name, rule.hook, rule.settings) == ("wait-for-friday", Hook.BEFORE_CLUSTER_UPGRADE, dict)
    assert (rule.decide, rule.source, rule.about) == (wait_for_friday, "others 1.0", "Only on Fridays.")


def test_one_function_may_be_a_rule_at_several_hooks() -> None:
    async def both(request: Any, ctx: HookContext[Any]) -> None: ...

    hook(Hook.BEFORE_CLUSTER_CREATE, name="first")(hook(Hook.AFTER_CLUSTER_UPGRADE, name="last")(both))
    assert [(rule.name, rule.hook) for rule in rules(both, source="")] == [
        ("first", Hook.BEFORE_CLUSTER_CREATE),
        ("last", Hook.AFTER_CLUSTER_UPGRADE),
    ]


def test_a_module_offers_each_of_its_rules_once() -> None:
    @hook(Hook.BEFORE_CLUSTER_CREATE)
    async def one(request: Any, ctx: HookContext[Any]) -> None: ...

    @hook(Hook.BEFORE_CLUSTER_CREATE)
    async def two(request: Any, ctx: HookContext[Any]) -> None: ...

    module = ModuleType("offered")
    vars(module).update(one=one, again=one, two=two, other=3)
    assert [rule.name for rule in rules(module, source="")] == ["one", "two"]
    assert [rule.name for rule in rules([two, module], source="")] == ["two", "one", "two"]


@pytest.mark.parametrize("it", [3, "text", lambda: None])
def test_what_is_no_rule_is_refused(it: Any) -> None:
    with pytest.raises(UnwindError, match="is not a rule"):
        list(rules(it, source=""))


def test_what_cannot_be_waited_for_or_named_is_refused_where_it_is_marked() -> None:
    with pytest.raises(UnwindError, match="use an async function"):
        hook(Hook.BEFORE_CLUSTER_CREATE)(lambda request, ctx: None)
    with pytest.raises(UnwindError, match="invalid rule name"):
        hook(Hook.BEFORE_CLUSTER_CREATE, name="No Name")(wait_for_friday)
