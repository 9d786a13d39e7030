"""Which kinds are looked after, and in which version."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.resources import Resource
from unwind.deleters.chain_attempt import Failed
from unwind.deleters.registration import External, Kinds
from unwind.deleters.registry import DeleterRegistry, Plugin
from unwind.external.kind_informers import survey_kinds, unserved
from unwind.kube.discovery import ServedKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.deleters.context import End
    from unwind.kube.client import Client

READ = ("get", "list", "watch")


def kind(group: str, version: str, name: str, *, verbs: tuple[str, ...] = READ) -> ServedKind:
    resource = Resource(group, version, f"{name.lower()}s", name)
    return ServedKind(resource=resource, verbs=frozenset(verbs))


def external(api_version: str, name: str) -> External:
    @asynccontextmanager
    async def opened(_: Client) -> AsyncIterator[End]:
        raise AssertionError("nobody needs it yet")
        yield

    return External(name="store", kinds=(Kinds(api_version, name),), open=opened)


async def followed(
    registry: DeleterRegistry, *served: ServedKind, removed: tuple[str, ...] = ()
) -> list[tuple[str, bool]]:
    defined = [f"{item.resource.plural}.{item.resource.group}" for item in served if "." in item.resource.group]
    found = await survey_kinds(registry, served, defined=defined, removed=removed)
    return [(f"{item.resource.api_version}/{item.resource.kind}", isinstance(item.end, Failed)) for item in found]


async def test_a_kind_is_followed_in_one_version_that_its_end_is_for() -> None:
    served = (kind("example.dev", "v2", "Bucket"), kind("example.dev", "v1", "Bucket"), kind("", "v1", "Pod"))
    any_version = DeleterRegistry([external("example.dev/*", "Bucket")])
    assert await followed(any_version, *served) == [("example.dev/v2/Bucket", False)]
    old_version = DeleterRegistry([external("example.dev/v1", "Bucket")])
    assert await followed(old_version, *served) == [("example.dev/v1/Bucket", False)]


async def test_what_cannot_be_watched_or_is_gone_is_not_followed() -> None:
    registry = DeleterRegistry([external("*", "*")])
    served = (kind("example.dev", "v1", "Review", verbs=("create",)), kind("example.dev", "v1", "Bucket"))
    assert await followed(registry, *served) == [("example.dev/v1/Bucket", False)]
    assert await followed(registry, *served, removed=("buckets.example.dev",)) == []


async def test_kinds_of_a_plugin_that_does_not_load_are_held_but_not_those_of_the_api_server_itself() -> None:
    def broken() -> object:
        raise ImportError("gone")

    served = (kind("", "v1", "Pod"), kind("example.dev", "v1", "Bucket"), kind("other.dev", "v1", "Thing"))
    some = DeleterRegistry(plugins=[Plugin("example.dev/v1/Bucket", broken, source="store 1.0")])
    assert await followed(some, *served) == [("example.dev/v1/Bucket", True)]
    unnamed = DeleterRegistry(plugins=[Plugin("no kind", broken, source="store 1.0")])
    assert await followed(unnamed, *served) == [("example.dev/v1/Bucket", True), ("other.dev/v1/Thing", True)]


async def test_a_plugin_whose_kinds_are_not_served_is_not_loaded() -> None:
    def load() -> object:
        raise AssertionError("nobody needs it")

    plugin = Plugin("*.azure.com/*/*", load, source="azure 1.0")
    assert await followed(DeleterRegistry(plugins=[plugin]), kind("example.dev", "v1", "Bucket")) == []
    assert not plugin.loaded
    assert not plugin.error


def test_a_crd_whose_kind_is_not_served_yet_is_noticed() -> None:
    served = [kind("example.dev", "v1", "Bucket")]
    assert unserved(["buckets.example.dev", "things.example.dev"], served) == {"things.example.dev"}
