from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Step
from unwind.deleters.memo import Memo
from unwind.deleters.outcomes import Gone
from unwind.drain import objects
from unwind.drain.remover import DrainRemover

if TYPE_CHECKING:
    from collections.abc import Mapping

OBJECTS = 50


async def test_that_a_drain_has_begun_is_recorded_once_and_before_the_first_deletion() -> None:
    step = Step(name="Drain/loadBalancers", object=ObjectRef(name="loadBalancers"), effort=Effort.ENFORCE.value)
    policies: Any = SimpleNamespace(known=lambda _: SimpleNamespace(policies=()))
    context: Any = SimpleNamespace(step=step, target=None, requested=False, teardown=None)
    removal: Any = DrainRemover(policies).begin(context)
    done: list[str] = []

    async def save(values: Mapping[str, str | None]) -> None:
        await asyncio.sleep(0)
        done.extend(values)

    async def delete(number: int) -> None:
        memo = Memo({objects.FINALIZER: "example.dev/cleanup"}, save, scope="drain")
        ref = ObjectRef(kind="Service", name=f"shop-{number}")
        obj = {"metadata": {"name": ref.name}, "spec": {"type": "LoadBalancer"}}
        ctx = SimpleNamespace(absent=False, ref=ref, memo=memo)

        async def next_(*_: object) -> Gone:
            done.append("DELETE")
            return Gone()

        assert isinstance(await removal._delete(ctx, obj, next_), Gone)

    await asyncio.gather(*map(delete, range(OBJECTS)))
    assert done == ["drain.begun", *["DELETE"] * OBJECTS]
