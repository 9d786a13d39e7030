"""The Secret with the key of our paths."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.api.resources import NAMESPACES, SECRETS
from unwind.errors import UnwindError
from unwind.server import path_keys
from unwind.server.path_keys import NAME, OVERLAP, PathKeys
from unwind.testing.objects import Objects

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOME = "unwind-system"


async def test_it_is_made_once_and_found_by_everyone_after_that() -> None:
    objects = Objects(resources=(NAMESPACES, SECRETS))
    first = await path_keys.obtain(objects.client, HOME, now=NOW)
    assert await path_keys.obtain(objects.client, HOME, now=NOW) == first
    assert first.accepted(NOW) == (first.current,)
    assert "key" not in repr(first)


async def test_a_rotated_key_and_that_of_a_deleted_secret_are_accepted_for_a_while() -> None:
    objects = Objects(resources=(NAMESPACES, SECRETS))
    first = await path_keys.obtain(objects.client, HOME, now=NOW)
    second = await path_keys.obtain(objects.client, HOME, now=NOW, rotate=True)
    assert second == await path_keys.obtain(objects.client, HOME, now=NOW)
    assert second.accepted(NOW) == (second.current, first.current)
    assert second.accepted(NOW + OVERLAP) == (second.current,)
    made = await objects.client.get(SECRETS, NAME, namespace=HOME)
    await objects.client.delete(SECRETS, NAME, uid=made["metadata"]["uid"], namespace=HOME)
    third = await path_keys.obtain(objects.client, HOME, now=NOW, known=second)
    assert third.accepted(NOW) == (third.current, second.current)
    assert len({first.current, second.current, third.current}) == 3


async def test_a_secret_of_somebody_else_is_neither_used_nor_written() -> None:
    objects = Objects(resources=(NAMESPACES, SECRETS))
    foreign = path_keys.keys_secret(HOME, PathKeys(b"theirs"))
    del foreign["metadata"]["labels"]
    await objects.client.create(SECRETS, foreign)
    with pytest.raises(UnwindError, match="was not created by Unwind"):
        await path_keys.obtain(objects.client, HOME, now=NOW, rotate=True)
    found = await objects.client.get(SECRETS, NAME, namespace=HOME)
    assert path_keys.read_keys(found) == PathKeys(b"theirs")


def test_what_is_not_a_key_is_none() -> None:
    for data in ({}, {"key": ""}, {"key": "%"}):
        assert path_keys.read_keys({"data": data}) is None
    assert path_keys.read_keys(path_keys.keys_secret(HOME)) is None
    keys = PathKeys(b"a", b"b", NOW)
    assert path_keys.read_keys(path_keys.keys_secret(HOME, keys)) == keys
