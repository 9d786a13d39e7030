"""What is listed of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.kube.decoding import Page, decode_response
from unwind.kube.discovery import ServedKind
from unwind.kube.errors import ApiError, APIStatus
from unwind.members.contents import cluster_contents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource


class OneKind:
    """A client that may list ConfigMaps only."""

    async def pages(self, resource: Resource, **_: Any) -> AsyncIterator[Page]:
        if resource != CONFIG_MAPS:
            raise ApiError(APIStatus(code=403), request="GET")
        item = b'{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}}'
        yield decode_response(b'{"kind":"List","metadata":{},"items":[' + item + b"]}", Page, "a list")


class Kinds:
    async def kinds(self, *, anew: bool) -> list[ServedKind]:
        return [ServedKind(kind, frozenset({"list", "delete"})) for kind in (CONFIG_MAPS, SECRETS)]

    async def silent(self) -> list[str]:
        return []


async def test_kinds_that_may_not_be_listed_are_left_out_only_on_request() -> None:
    client, discovery = cast("Any", OneKind()), cast("Any", Kinds())
    assert [item.metadata.name for item in await cluster_contents(client, discovery, readable=True)] == ["a"]
    with pytest.raises(ApiError):
        await cluster_contents(client, discovery)
