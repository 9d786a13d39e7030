"""`unwind run` with a plugin of another package and no rights but those that are installed and documented."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.plane.support.buckets import Buckets, define
from tests.plane.support.commands import command
from tests.plane.support.manager_process import running
from tests.plane.support.plugins import install_bucket_plugin
from unwind.api.features import ALL, written
from unwind.api.names import DELETE_POLICY_ANNOTATION, Finalizer
from unwind.api.resources import CLUSTER_ROLES
from unwind.api.rights import HOME
from unwind.api.unwind import INVENTORIES
from unwind.kube.events import EVENTS

if TYPE_CHECKING:
    from unwind.local.cluster import LocalCluster

MANAGER = f"system:serviceaccount:{HOME}:unwind"

# The first deletion of a Bucket takes a while.
PLUGIN = """
async def delete_file(ctx, path):
    if "asked" not in ctx.memo:
        await ctx.memo.put("asked")
        raise Again("the store was asked", after=0.2)
    if (STORE / "slow").exists():
        raise Again("the store is slow", after=0.2)
    path.unlink(missing_ok=True)
    return Gone("the file is gone")
"""


def documented_role() -> dict[str, object]:
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text()
    [block] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    role: dict[str, object] = yaml.safe_load(block)
    return role


async def test_the_manager_works_with_exactly_the_rights_that_are_documented(
    fresh_member: LocalCluster, tmp_path: Path
) -> None:
    client = fresh_member.client
    # Also with the features of deployers that are not installed here: a manager that waits for them does not warn.
    assert (await command(fresh_member, "install", features=written(ALL))).code == 0
    await client.create(CLUSTER_ROLES, documented_role())
    buckets = Buckets(client, await define(client, "example.dev", granted=False), "default")
    variables = install_bucket_plugin(tmp_path, "bucket_files", PLUGIN)
    store = tmp_path / "store"
    for name in ("one", "two", "three", "slow"):
        (store / name).touch()
    kubeconfig = fresh_member.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    run = partial(running, fresh_member, HOME, "--roles", "controllers", **variables, kubeconfig=kubeconfig)

    async with run() as manager:
        await manager.until_ready()
        one = await buckets.claimed("one")
        kept = await buckets.claimed("two", annotations={DELETE_POLICY_ANNOTATION: "detach-on-delete"})
        await buckets.delete(kept)
        await buckets.until_gone("two")
        await buckets.delete(one)
        said = await buckets.until("one", lambda it: "is slow" in str(it.get("status")))
        assert Finalizer.EXTERNAL in said["metadata"]["finalizers"]
        manager.process.send_signal(signal.SIGKILL)
        await manager.process.wait()
    assert (store / "one").exists()

    # Another one takes over; by default it keeps what nobody says anything about.
    async with run(UNWIND_DELETE_POLICY="skip") as manager:
        await manager.until_ready()
        (store / "slow").unlink()
        await buckets.annotate("one", **{DELETE_POLICY_ANNOTATION: "manage"})
        await buckets.until_gone("one")
        await buckets.delete(await buckets.claimed("three"))
        await buckets.until_gone("three")
        _, metrics = await manager.probe("/metrics")
        assert 'unwind_deletions_total{end="gone",kind="buckets.example.dev"} 1.0' in metrics
        assert 'unwind_deletions_total{end="kept",kind="buckets.example.dev"} 1.0' in metrics
        assert await manager.stop() == 0
    assert not [entry for entry in manager.logged if entry["level"] in ("warning", "error")]
    assert sorted(path.name for path in store.iterdir()) == ["three", "two"]
    assert len(await client.list(INVENTORIES, namespace=HOME)) == 2
    told = {event["reason"] for event in await client.list(EVENTS, namespace="default")}
    assert {"FinalizerSet", "DeletionStarted", "Deleting", "Gone", "Kept"} <= told

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert asked
    assert [entry for entry in asked if entry.code == 403] == []
    sent = fresh_member.audit.deletions(resource="buckets", namespace="default")
    assert MANAGER not in {entry.username for entry in sent}
