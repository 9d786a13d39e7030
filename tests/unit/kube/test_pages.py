"""Lists in pages, with scripted responses."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from tests.unit.kube.test_client_retries import answer, answering
from unwind.api.resources import CONFIG_MAPS
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from unwind.kube.decoding import Page


def page(number: int, *, more: bool) -> bytes:
    token = f', "continue": "after-{number}"' if more else ""
    metadata = f'{{"resourceVersion": "7"{token}}}'
    return answer("200 OK", f'{{"kind": "ConfigMapList", "metadata": {metadata}, "items": [{number}]}}'.encode())


def number_in(found: Page) -> int:
    [item] = found.items or []
    return int(bytes(item))


async def test_the_next_page_is_requested_while_one_is_handled_if_the_caller_reads_all() -> None:
    async with answering(page(1, more=True), page(2, more=True), page(3, more=False)) as (client, asked):
        read: list[int] = []
        async with aclosing(client.pages(CONFIG_MAPS, ahead=True)) as pages:
            async for found in pages:
                read.append(number_in(found))
                async with asyncio.timeout(10):
                    while len(asked) < min(len(read) + 1, 3):
                        await asyncio.sleep(0.001)
        assert read == [1, 2, 3]
        assert [line.partition("continue=")[2].partition(" ")[0] for line in asked] == ["", "after-1", "after-2"]


async def test_without_that_no_page_is_requested_before_it_is_needed() -> None:
    async with answering(page(1, more=True), page(2, more=False)) as (client, asked):
        async with aclosing(client.pages(CONFIG_MAPS)) as pages:
            assert number_in(await anext(pages)) == 1
        assert len(asked) == 1


async def test_a_list_that_is_given_up_leaves_no_request_behind() -> None:
    async with answering(page(1, more=True)) as (client, asked):
        before = asyncio.all_tasks()
        async with aclosing(client.pages(CONFIG_MAPS, ahead=True)) as pages:
            assert number_in(await anext(pages)) == 1
        assert len(asked) <= 2
        assert not [task for task in asyncio.all_tasks() - before if "pages" in str(task.get_coro())]


async def test_an_error_of_the_next_page_comes_when_that_page_is_read() -> None:
    expired = answer("410 Gone", b'{"kind": "Status", "reason": "Expired", "code": 410}')
    async with (
        answering(page(1, more=True), expired) as (client, asked),
        aclosing(client.pages(CONFIG_MAPS, ahead=True)) as pages,
    ):
        assert number_in(await anext(pages)) == 1
        async with asyncio.timeout(10):
            while len(asked) < 2:
                await asyncio.sleep(0.001)
        with pytest.raises(ApiError) as error:
            await anext(pages)
        assert error.value.code == 410
