"""Registration of deleters."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from unwind.api.fields import Model
from unwind.api.meta import ObjectMeta
from unwind.deleters.registration import External, Kinds, Registration, deleter, registrations
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Gone, Kept


class Bucket(Model, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: dict[str, str] = msgspec.field(default_factory=dict)


class Strict(msgspec.Struct):
    metadata: ObjectMeta
    spec: dict[str, str]


@deleter("example.dev/v1", "Bucket", order=7, model=Bucket)
async def empty_first(ctx: DeleteContext, obj: Bucket, next: DeleteFunc[Bucket]) -> Gone | Kept:  # noqa: A002
    """Empty the bucket.

    And more that nobody reads in a table.
    """
    return await next(ctx, obj)


@deleter("example.dev/v1", "Topic")
@deleter("example.dev/v1", "Queue", name="drain")
class DrainFirst:
    """Drain it."""

    async def delete(self, ctx: DeleteContext, obj: Any, next: DeleteFunc[Any]) -> Gone | Kept:  # noqa: A002
        return await next(ctx, obj)


def offered(it: object) -> list[Registration]:
    found: Iterable[Registration | External] = registrations(it, source="a test")
    return [registration for registration in found if isinstance(registration, Registration)]


def test_a_function_is_a_deleter_and_stays_a_function() -> None:
    [one] = offered(empty_first)
    assert (one.name, one.kinds, one.order) == ("empty-first", (Kinds("example.dev/v1", "Bucket"),), 7)
    assert (one.model, one.about, one.source) == (Bucket, "Empty the bucket.", "a test")
    assert one.delete is empty_first


def test_a_class_is_a_deleter_for_each_kind_that_it_is_marked_with() -> None:
    [one] = offered(DrainFirst)
    assert one.name == "drain"
    assert one.kinds == (Kinds("example.dev/v1", "Topic"), Kinds("example.dev/v1", "Queue"))


def test_a_module_offers_all_its_deleters_once() -> None:
    module = ModuleType("plugin")
    vars(module).update(a=empty_first, again=empty_first, b=DrainFirst, other=1, text="x")
    assert sorted(item.name for item in offered(module)) == ["drain", "empty-first"]
    assert sorted(item.name for item in offered([empty_first, DrainFirst])) == ["drain", "empty-first"]


@pytest.mark.parametrize("nothing", [42, "text", [object()]])
def test_what_is_no_deleter_is_refused(nothing: object) -> None:
    with pytest.raises(UnwindError, match="not a deleter"):
        offered(nothing)


@pytest.mark.parametrize("name", ["Big", "a_b", "x" * 33, "a.b"])
def test_a_name_that_fits_no_memo_is_refused_at_once(name: str) -> None:
    with pytest.raises(UnwindError, match="invalid deleter name"):
        deleter("v1", "ConfigMap", name=name)(empty_first)


def test_a_model_that_cannot_be_read_from_a_tombstone_is_refused_at_once() -> None:
    with pytest.raises(UnwindError, match=r"cannot decode Strict from the tombstone.*default"):
        deleter("v1", "ConfigMap", name="strict", model=Strict)(lambda: None)
