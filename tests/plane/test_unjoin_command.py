"""`unwind unjoin`, as a person gives it: what it shows, what it leaves to the manager, and how it exits."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.eventually import eventually
from tests.plane.support.controllers import HOLD
from tests.plane.support.unjoins import UnjoinScene, controllers, scene
from unwind.api.karmada import RemoveStrategy
from unwind.api.names import KARMADA_CLUSTER_NAMESPACE
from unwind.api.resources import CLUSTER_ROLES, LEASES, SERVICE_ACCOUNTS
from unwind.cli.unjoin import FORCED, unjoin
from unwind.errors import TimedOutError, UnwindError
from unwind.karmada import join_objects
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane

REQUIRED = RemoveStrategy.REQUIRED


class Command:
    """The command, with what every call of it here has in common."""

    def __init__(self, plane: Plane, it: UnjoinScene, capsys: pytest.CaptureFixture[str]) -> None:
        self._plane = plane
        self._it = it
        self._capsys = capsys

    async def attend(self) -> None:
        """Have it believe that a manager runs: that is known by Leases."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": "unwind-replica-test", "namespace": self._it.namespace},
            "spec": {"holderIdentity": "test", "renewTime": now, "leaseDurationSeconds": 3600},
        }
        await self._it.client.create(LEASES, body)

    async def __call__(self, **options: Any) -> str:
        """What it prints, on either side."""
        way: dict[str, Any] = {"kubeconfig": self._plane.management.kubeconfig, "unwind_namespace": self._it.namespace}
        try:
            await unjoin(self._it.name, **(way | options))
        finally:
            self.printed = self._capsys.readouterr()
        return self.printed.out + self.printed.err

    async def document(self, **options: Any) -> Any:
        await self(output="json", **options)
        # The controllers beside it say things, too.
        [found] = re.findall(r"^\{$.*?^\}$", self.printed.out, re.MULTILINE | re.DOTALL)
        return msgspec.json.decode(found)


@asynccontextmanager
async def required(
    plane: Plane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[tuple[UnjoinScene, Command]]:
    """A member whose objects are removed, and the command."""
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        yield it, Command(plane, it, capsys)


def looks(it: UnjoinScene) -> int:
    """How often somebody asked the member who it is, but for the controllers."""
    entries = it.cluster.audit.entries(verbs=("get",), resource="namespaces")
    return sum(not entry.username.startswith("system:") for entry in entries)


async def test_it_says_what_is_in_the_way_and_takes_its_credentials_out_in_the_end(
    plane: Plane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with required(plane, namespace, capsys) as (it, command):
        await it.put("base")
        await it.put("web", depends_on=("base",))
        await it.deployed("base", "web")
        await it.block("web-1")
        shown = await command(dry_run=True)
        assert all(part in shown for part in ("Work/web", "Work/base", f"ConfigMap {namespace}/web-1", "removed"))
        with pytest.raises(UnwindError, match="no manager is running"):
            await command()
        assert not (await it.get()).metadata.terminating
        await command.attend()
        # Nothing is in the way yet that anybody could name.
        with pytest.raises(TimedOutError, match="continues in the background"):
            await command(wait="0s")
        await it.says("UnjoinFailed", "web-1")
        with pytest.raises(UnwindError, match=f"cannot unjoin {it.name}: Work web: .*web-1.*{HOLD}") as failure:
            await command(wait="1s")
        assert failure.value.exit_code == 1
        assert f"ConfigMap {namespace}/web-1" in command.printed.err
        assert f"ConfigMap {namespace}/web-1: ConfigMap" not in command.printed.err
        assert "Work base: Waiting" in command.printed.err
        before = looks(it)
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(command.document(cluster_kubeconfig=it.cluster.kubeconfig))
            # It has found the Cluster then, and asks the member who it is.
            await eventually(lambda: looks(it) != before, "a request to the member")
            await it.unblock("web-1")
        told = leaving.result()
        assert (told["gone"], told["phase"], told["removed"]) == (True, "Complete", "4/4")
        assert f"ClusterRole {join_objects.role(it.name)}" in told["credentials"]
        member = it.cluster.client
        for kind, name, where in (
            (CLUSTER_ROLES, join_objects.role(it.name), None),
            (SERVICE_ACCOUNTS, join_objects.account(it.name), KARMADA_CLUSTER_NAMESPACE),
        ):
            with pytest.raises(NotFoundError):
                await member.get(kind, name, namespace=where)
        with pytest.raises(UnwindError, match="not found"):
            await command()


async def test_force_lets_the_member_go_and_prints_each_object_that_is_left(
    plane: Plane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with required(plane, namespace, capsys) as (it, command):
        await it.put("web")
        await it.deployed("web")
        await command.attend()
        with pytest.raises(UnwindError, match="is for cluster"):
            await command(force=True, cluster_kubeconfig=plane.management.kubeconfig)
        shown = await command(force=True)
        assert all(part in shown for part in (f"ConfigMap {namespace}/web-0", f"{namespace}/web-1", "Forced", FORCED))
        assert "credentials remain in namespace" in shown
        assert it.deleted() == []
        assert set(await it.ledger()) == {"web-0", "web-1"}
