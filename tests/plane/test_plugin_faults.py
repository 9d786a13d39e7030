"""Whatever a deleter of another package does, its object is held with a reason, and the manager keeps working."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.buckets import Buckets, define, ready
from tests.plane.support.commands import command
from tests.plane.support.manager_process import Manager, running
from tests.plane.support.plugins import install_bucket_plugin
from unwind.api.names import Finalizer
from unwind.api.rights import HOME
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.local.plane import Plane

pytestmark = pytest.mark.timeout(300)

# A Bucket's name says what its deleter does. Each of them holds its own Bucket only.
PLUGIN = """
async def delete_file(ctx, path):
    path.unlink(missing_ok=True)
    return Gone("the file is gone")


class BrokenEvent:
    async def wait(self):
        sys.exit(4)


async def again():
    raise Again("the snapshot is not finished", after=1)


async def leave():
    await asyncio.sleep(0)
    sys.exit(3)


async def in_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(work)
        await asyncio.sleep(60)


def block():
    time.sleep(6.5)  # a block is reported after 5 s, and looked for once a second


@deleter("example.dev/*", "Bucket")
async def misbehave(ctx, obj, next):
    what = ctx.ref.name
    if what == "again-in-group":
        await in_group(again())
    elif what == "exit":
        sys.exit(3)
    elif what == "exit-in-task":
        await in_group(leave())
    elif what == "exit-in-callback":
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.1)
        raise TransientError("it tried to exit")
    elif what == "interrupt":
        raise KeyboardInterrupt
    elif what == "cancelled":
        raise asyncio.CancelledError
    elif what == "cancelled-group":
        raise BaseExceptionGroup("several", [asyncio.CancelledError(), SystemExit(1)])
    elif what == "generator-exit":
        raise GeneratorExit
    elif what == "nonsense":
        return "gone"
    elif what == "nonsense-again":
        raise Again(7, after="soon")
    elif what == "nonsense-error":
        raise TransientError("x", pace="fast", retry_after="later")
    elif what == "broken-event":
        raise Again("an event that breaks", until=BrokenEvent())
    elif what == "blocks":
        block()
    return await next(ctx, obj)
"""

HELD = {
    "again-in-group": "the snapshot is not finished",
    "exit": "SystemExit",
    "exit-in-task": "SystemExit",
    "exit-in-callback": "it tried to exit",
    "interrupt": "KeyboardInterrupt",
    "cancelled": "CancelledError",
    "cancelled-group": "SystemExit",
    "generator-exit": "GeneratorExit",
    "nonsense": "returned 'gone'",
    "nonsense-again": "after='soon'",
    "nonsense-error": "x",
    "broken-event": "an event that breaks",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Manager, Buckets, Path]]:
    """A manager with the plugin, as a process of its own."""
    member, folder = await plane.add_member("plugin-faults"), tmp_path_factory.mktemp("plugin")
    assert (await command(member, "install")).code == 0
    buckets = Buckets(member.client, await define(member.client, "example.dev"), "default")
    variables = install_bucket_plugin(folder, "bad_deleters", PLUGIN)
    async with running(member, HOME, "--roles", "controllers", kubeconfig=None, **variables) as manager:
        await manager.until_ready()
        yield manager, buckets, folder / "store"
    try:
        check_requests(member)
    finally:
        await plane.remove_member(member.name)


async def test_a_deleter_that_blocks_the_event_loop_is_named_in_the_log(scene: tuple[Manager, Buckets, Path]) -> None:
    manager, buckets, store = scene
    (store / "blocks").touch()
    await buckets.delete(await buckets.claimed("blocks"))
    await buckets.until_gone("blocks")
    blocked = await manager.until_logged("event loop blocked")
    assert blocked["module"] == "bad_deleters"
    assert "in block" in blocked["stack"]
    # Shorter than 30 s: the process is not restarted for it.
    assert (await manager.probe("/healthz"))[0] == 200


# The last test: it stops the manager.
async def test_whatever_a_deleter_raises_or_returns_its_object_is_held_by_name_and_nothing_else_suffers(
    scene: tuple[Manager, Buckets, Path],
) -> None:
    manager, buckets, store = scene
    for name in HELD:
        (store / name).touch()
        await buckets.delete(await buckets.claimed(name))
    for name, words in HELD.items():
        assert manager.process.returncode is None, manager.logged[-3:]
        found = await buckets.until(name, lambda it, words=words: words in ready(it).get("message", ""))  # type: ignore[misc]
        assert Finalizer.EXTERNAL in found["metadata"]["finalizers"]
        assert (store / name).exists()
    # Another object of the same kind goes, and the manager still stops when it is told to.
    (store / "good").touch()
    await buckets.delete(await buckets.claimed("good"))
    await buckets.until_gone("good")
    assert sorted(path.name for path in store.iterdir()) == sorted(HELD)
    assert await manager.stop() == 0
