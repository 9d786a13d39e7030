"""The deleters in an object's chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.deleters.making import OBJECT, FakeEnd, context
from unwind.api.names import Reason
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, SECRETS, Resource
from unwind.deleters.chain_attempt import enter
from unwind.deleters.memo import nowhere
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import External, Kinds, Registration
from unwind.deleters.registry import DeleterRegistry, Plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object


class Trace:
    """Deleters that record their call and pass the object on."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def link(self, name: str, kinds: str = "v1/ConfigMap", **more: Any) -> Registration:
        async def pass_on(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
            self.entered.append(name)
            return await next(ctx, obj)

        return Registration(name=name, kinds=(Kinds.parse(kinds),), delete=pass_on, **more)


def plugin(kinds: str, load: Callable[[], object]) -> Plugin:
    return Plugin(kinds, load, source="kube-example 1.0")


def breaks() -> object:
    raise ImportError("no module named example")


async def test_deleters_are_entered_in_their_order_and_ties_by_name() -> None:
    trace = Trace()
    known = [trace.link("late", order=100), trace.link("b"), trace.link("a"), trace.link("first", "*", order=-1000)]
    registry = DeleterRegistry([*known, trace.link("other", "v1/Secret")])
    await enter(registry, FakeEnd(), context(), OBJECT)
    assert trace.entered == ["first", "a", "b", "late"]


async def test_a_plugin_is_not_loaded_before_one_of_its_kinds_is_deleted() -> None:
    loaded: list[str] = []

    def load() -> object:
        loaded.append("apps")
        return []

    registry = DeleterRegistry(plugins=[plugin("apps/*/*", load)])
    await registry.deleters(CONFIG_MAPS)
    assert loaded == []
    await registry.deleters(DEPLOYMENTS)
    await registry.deleters(DEPLOYMENTS)
    assert loaded == ["apps"]


@pytest.mark.parametrize("failure", [ImportError("x"), SystemExit(1), SyntaxError("y"), RuntimeError("z")])
async def test_a_plugin_that_fails_to_load_has_its_kinds_held_and_takes_nothing_down(failure: BaseException) -> None:
    def load() -> object:
        raise failure

    told: list[str] = []
    registry = DeleterRegistry(plugins=[plugin("v1/ConfigMap", load)], broken=lambda one: told.append(one.name))
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"cannot delete ConfigMap objects: plugin kube-example 1\.0") as held:
            await registry.deleters(CONFIG_MAPS)
        assert held.value.reason == Reason.HELD
    assert await registry.deleters(SECRETS) == ()
    assert told == ["v1/ConfigMap"]


async def test_a_plugin_whose_kinds_are_not_known_has_everything_held() -> None:
    registry = DeleterRegistry(plugins=[plugin("my-deleters", list)])
    with pytest.raises(PermanentError, match="invalid kind"):
        await registry.deleters(SECRETS)


async def test_a_plugin_may_not_reach_beyond_the_kinds_that_it_is_named_by() -> None:
    trace = Trace()
    registry = DeleterRegistry(plugins=[plugin("v1/ConfigMap", lambda: [trace.link("reach", "v1/*")])])
    with pytest.raises(PermanentError, match=r"reach is for v1/\*.*does not cover"):
        await registry.deleters(CONFIG_MAPS)


async def test_a_deleter_for_another_version_of_the_kind_holds_it() -> None:
    registry = DeleterRegistry([Trace().link("old", "v1beta1/ConfigMap")])
    with pytest.raises(PermanentError, match="old is registered for v1beta1/ConfigMap, not for v1"):
        await registry.deleters(CONFIG_MAPS)


async def test_two_deleters_of_one_name_hold_the_kind() -> None:
    trace = Trace()
    with pytest.raises(PermanentError, match="same name: twice"):
        await DeleterRegistry([trace.link("twice"), trace.link("twice", "v1/*")]).deleters(CONFIG_MAPS)


async def test_a_deleter_that_began_and_is_not_installed_any_more_holds_the_object() -> None:
    memo = nowhere()
    await memo.of("purge").put("begun")
    with pytest.raises(
        PermanentError, match="cannot delete ConfigMap default/one: purge started its deletion and is not installed"
    ):
        await enter(DeleterRegistry(), FakeEnd(), context(memo=memo), OBJECT)


async def test_a_predicate_chooses_objects() -> None:
    trace = Trace()
    blue = trace.link("blue", when=lambda obj: obj["metadata"]["annotations"]["colour"] == "blue")
    red = trace.link("red", when=lambda obj: obj["metadata"]["annotations"]["colour"] == "red")
    await enter(DeleterRegistry([blue, red]), FakeEnd(), context(), OBJECT)
    assert trace.entered == ["blue"]


async def test_objects_with_the_same_deleters_share_a_chain() -> None:
    trace, end = Trace(), FakeEnd()
    registry = DeleterRegistry([trace.link("all"), trace.link("blue", when=lambda obj: obj["data"]["blue"])])
    plain, blue = OBJECT | {"data": {"blue": False}}, OBJECT | {"data": {"blue": True}}
    first = await registry.chain(context(), plain, end)
    other = await registry.chain(context(), blue, end)
    assert await registry.chain(context(), plain, end) is first
    assert other is not first
    assert await registry.chain(context(), plain, FakeEnd()) is not first
    await (await registry.chain(context(), plain, end))(context(), plain)
    await other(context(), blue)
    assert trace.entered == ["all", "all", "blue"]


async def test_who_was_chosen_stays_when_the_object_is_gone_and_no_longer_says_so() -> None:
    trace, memo = Trace(), nowhere()
    registry = DeleterRegistry([trace.link("purge", when=lambda obj: obj["data"]["mode"] == "Purge")])
    await enter(registry, FakeEnd(), context(memo=memo), OBJECT)
    gone = context(memo=memo, absent=True)
    await enter(registry, FakeEnd(), gone, gone.tombstone())
    assert trace.entered == ["purge", "purge"]


async def test_who_was_never_chosen_does_not_come_in_over_a_tombstone() -> None:
    trace = Trace()
    registry = DeleterRegistry([trace.link("purge", when=lambda _: True)])
    gone = context(absent=True)
    await enter(registry, FakeEnd(), gone, gone.tombstone())
    assert trace.entered == []


async def test_a_predicate_that_fails_holds_the_object() -> None:
    end = FakeEnd()
    registry = DeleterRegistry([Trace().link("fragile", when=lambda obj: obj["spec"]["x"] == 1)])
    with pytest.raises(
        PermanentError, match="cannot delete ConfigMap default/one: deleter fragile failed to check whether it applies"
    ):
        await enter(registry, end, context(), OBJECT)
    assert end.calls == 0


async def test_deleters_of_the_external_resource_are_not_called_if_others_delete_it() -> None:
    trace = Trace()
    registry = DeleterRegistry([trace.link("outside", external=True), trace.link("inside")])
    kept = nowhere()
    await kept.of("outside").put("begun")
    await enter(registry, FakeEnd(), context(memo=kept), OBJECT, left_to_others=True)
    assert trace.entered == ["inside"]
    await enter(registry, FakeEnd(), context(memo=kept), OBJECT)
    assert trace.entered == ["inside", "inside", "outside"]


async def test_two_ends_for_one_kind_hold_it() -> None:
    ends = [External(name=name, kinds=(Kinds("a.dev/*", "*"),), open=lambda _: None) for name in ("x", "y")]  # type: ignore[arg-type,return-value]
    buckets = Resource("a.dev", "v1", "buckets", "Bucket")
    assert await DeleterRegistry(ends[:1]).external(buckets) == ends[0]
    assert await DeleterRegistry(ends[:1]).external(CONFIG_MAPS) is None
    with pytest.raises(PermanentError, match="x and y both register an external end"):
        await DeleterRegistry(ends).external(buckets)
