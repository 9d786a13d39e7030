"""Rules of other packages: each is loaded for its hook, and one that does not load holds that hook only."""

from __future__ import annotations

import asyncio
import threading
from types import ModuleType
from typing import Any

import pytest

from unwind.api.hooks import Hook
from unwind.capi.hook_registry import HookPlugin, HookRegistry
from unwind.hooks import HookContext, Rule, hook

CREATE, UPGRADE = Hook.BEFORE_CLUSTER_CREATE, Hook.BEFORE_CLUSTER_UPGRADE


@hook(UPGRADE)
async def freeze(request: Any, ctx: HookContext[Any]) -> None:
    """Nothing is upgraded on Fridays."""


@hook(CREATE)
async def quota(request: Any, ctx: HookContext[Any]) -> None:
    """There is room for one more."""


def module(**contents: Any) -> ModuleType:
    made = ModuleType("others")
    vars(made).update(contents)
    return made


def plugin(name: Hook | str, offer: Any, *beside: str) -> HookPlugin:
    def load() -> Any:
        if isinstance(offer, BaseException):
            raise offer
        return offer

    return HookPlugin(str(name), load, source="others 1.0", beside=beside)


def loaded(*plugins: HookPlugin, known: tuple[Rule, ...] = ()) -> HookRegistry:
    registry = HookRegistry(known, plugins=plugins)
    registry.load()
    return registry


def names(registry: HookRegistry, at: Hook) -> list[str]:
    return [f"{rule.name} of {rule.source}" for rule in registry.rules(at)]


def test_each_hook_has_the_rules_that_come_along_and_those_of_others() -> None:
    async def own(request: Any, ctx: HookContext[Any]) -> None: ...

    registry = loaded(
        plugin(UPGRADE, module(freeze=freeze)), known=(Rule(name="own", hook=UPGRADE, decide=own, about=""),)
    )
    assert names(registry, UPGRADE) == ["own of unwind", "freeze of others 1.0"]
    assert names(registry, CREATE) == []
    assert not any(registry.broken(at) for at in Hook)


def test_one_module_may_have_the_rules_of_several_hooks_if_each_is_named() -> None:
    both = module(freeze=freeze, quota=quota)
    registry = loaded(plugin(UPGRADE, both, UPGRADE, CREATE), plugin(CREATE, both, UPGRADE, CREATE))
    assert (names(registry, UPGRADE), names(registry, CREATE)) == (["freeze of others 1.0"], ["quota of others 1.0"])
    held = loaded(plugin(UPGRADE, both))
    assert held.broken(UPGRADE) == [
        (
            "cannot load the hook rules of package others 1.0 for BeforeClusterUpgrade: "
            "rule quota is for BeforeClusterCreate, but the package has no entry point of that name; "
            "declare an entry point BeforeClusterCreate in the package; "
            "fix or uninstall the package, then restart the manager"
        )
    ]
    assert names(held, UPGRADE) == []


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (ImportError("no module"), "ImportError: no module"),
        (SystemExit(2), "SystemExit: 2"),
        (object(), "is not a rule"),
        (module(), "the entry point has no rule for BeforeClusterUpgrade"),
        (module(quota=quota), "quota is for BeforeClusterCreate"),
    ],
)
def test_one_that_does_not_load_holds_its_hook_only(offer: Any, said: str) -> None:
    registry = loaded(plugin(UPGRADE, offer))
    [why] = registry.broken(UPGRADE)
    assert said in why
    assert not any(registry.broken(at) for at in Hook if at is not UPGRADE)


def test_one_named_by_no_hook_holds_all_of_them() -> None:
    registry = loaded(plugin("BeforeClusterUpgrades", module(freeze=freeze)))
    for at in Hook:
        assert "unknown hook 'BeforeClusterUpgrades'" in registry.broken(at)[0]


async def test_they_are_loaded_off_the_loop_and_it_is_not_ready_before() -> None:
    where = []

    def load() -> Any:
        where.append(threading.current_thread())
        return freeze

    registry = HookRegistry(plugins=[HookPlugin(UPGRADE.value, load, source="others 1.0")])
    assert not registry.ready
    async with asyncio.TaskGroup() as group:
        running = group.create_task(registry.run())
        while not registry.ready:
            await asyncio.sleep(0)
        running.cancel()
    assert names(registry, UPGRADE) == ["freeze of others 1.0"]
    assert where != [threading.main_thread()]


def test_without_plugins_it_is_ready_at_once() -> None:
    assert HookRegistry().ready
