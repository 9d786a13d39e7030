"""Users exchange a Helm release after Unwind has checked it: nothing of the exchanged one is deleted or created."""

from __future__ import annotations

import asyncio
import base64
import gzip
from typing import TYPE_CHECKING, Any

import msgspec

from tests.plane.support.cluster_teardowns import TeardownScene, manager
from tests.plane.support.helm_steps import QUOTAS, no_pods
from tests.plane.support.helm_users import HelmUser, ReleasePolicies
from unwind.api.resources import CONFIG_MAPS, JOBS, NAMESPACES, SECRETS
from unwind.api.unwind import Phase, Teardown
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.kube.client import Client
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from tests.plane.support.helm_steps import Step
    from unwind.api.resources import Resource
    from unwind.helm.program import Helm
    from unwind.kube.client import Object


class Victim:
    """A namespace of others with an object, and a release that is exchanged for one that names the object, and a hook
    there."""

    def __init__(self, client: Client, release_namespace: str) -> None:
        self.client = client
        self.namespace = f"{release_namespace}-others"
        self._release_namespace = release_namespace
        self._data: Object = {}
        self._secret = ""

    async def open(self) -> None:
        metadata = {"name": self.namespace}
        await self.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        await self.client.create(CONFIG_MAPS, self._config_map("theirs"))

    def _config_map(self, name: str) -> Object:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    async def exchange(self, release: str) -> None:
        """Exchange the content of the Secret of the release."""
        labels = f"owner=helm,name={release}"
        [secret] = await self.client.list(SECRETS, namespace=self._release_namespace, labels=labels)
        self._secret, self._data = secret["metadata"]["name"], secret["data"]
        text = gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"])))
        payload: dict[str, Any] = msgspec.json.decode(text)
        hook = msgspec.json.encode(self._config_map("gift")).decode()
        payload["manifest"] = msgspec.json.encode(self._config_map("theirs")).decode()
        payload["hooks"] = [{"name": "gift", "kind": "ConfigMap", "manifest": hook, "events": ["pre-delete"]}]
        packed = base64.b64encode(base64.b64encode(gzip.compress(msgspec.json.encode(payload)))).decode()
        await self._write({"release": packed})

    async def restore(self) -> None:
        await self._write(self._data)

    async def _write(self, data: Object) -> None:
        await self.client.patch(SECRETS, self._secret, {"data": data}, namespace=self._release_namespace)

    async def is_untouched(self) -> bool:
        """Whether the object is still there, and the hook was never created."""
        found = await self.client.list(CONFIG_MAPS, namespace=self.namespace)
        return {item["metadata"]["name"] for item in found} - {"kube-root-ca.crt"} == {"theirs"}


def after_check(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Awaitable[None]]) -> None:
    """Act when the uninstall has read the ConfigMap of this name: all of the release is read then, and nothing of it is
    deleted yet."""
    uninstall, get = HelmReleases.uninstall, Client.get
    armed = False

    async def uninstalling(self: HelmReleases, *given: Any, **more: Any) -> None:
        nonlocal armed
        armed = True
        await uninstall(self, *given, **more)

    async def getting(self: Client, resource: Resource, wanted: str, **more: Any) -> Any:
        nonlocal armed
        try:
            return await get(self, resource, wanted, **more)
        finally:
            if armed and (resource, wanted) == (CONFIG_MAPS, name):
                armed = False
                monkeypatch.undo()
                await act()

    monkeypatch.setattr(HelmReleases, "uninstall", uninstalling)
    monkeypatch.setattr(Client, "get", getting)


def _held(part: str) -> Callable[[Teardown], bool]:
    return lambda one: one.phase is Phase.HELD and any(part in item.message for item in one.status.blockers)


async def test_a_release_that_is_exchanged_after_its_check_is_checked_again(
    it: TeardownScene, user: HelmUser, helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    await user.install("db", "settings")
    victim = Victim(user.client, user.namespace)
    await victim.open()
    after_check(monkeypatch, "db-settings", lambda: victim.exchange("db"))
    async with manager(it.client, sources=(ReleasePolicies(it, helm).steps,)):
        await it.delete()
        await it.teardown(_held("its hooks would create ConfigMap gift"), "held by the hook")
        assert await it.objects() == {"db-settings"}, "nothing of the release was deleted"
        assert await victim.is_untouched()
        await victim.restore()
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await victim.is_untouched()
    assert await it.objects() == set()
    assert await user.secrets("db") == []
    await it.let_go()


async def test_a_release_that_is_exchanged_while_its_hook_runs_is_removed_as_it_was_checked(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    await user.install("db", "farewell")
    quota = await no_pods(user)
    victim = Victim(user.client, user.namespace)
    await victim.open()
    async with manager(it.client, sources=(ReleasePolicies(it, helm).steps,)):
        await it.delete()
        await until(user.client, JOBS, "db-farewell", bool, "there", namespace=user.namespace)
        await victim.exchange("db")
        await user.client.delete(QUOTAS, "none", uid=quota["metadata"]["uid"], namespace=user.namespace)
        await it.teardown(_held("its hooks would create ConfigMap gift"), "held by the exchanged release")
        assert await victim.is_untouched()
        assert "db-settings" not in await it.objects()
        await victim.restore()
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await victim.is_untouched()
    assert await user.secrets("db") == []
    await it.let_go()


async def test_a_release_of_a_profile_that_is_exchanged_after_its_check_is_removed_as_it_was_checked(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    await step.deploy(step.chart("web"))
    victim = Victim(step.client, step.namespace)
    await victim.open()
    after_check(monkeypatch, "web-settings", lambda: victim.exchange("web"))
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        words = await step.until_said("not in the chart that was deployed")
        assert f"ConfigMap {victim.namespace}/gift" in words
        assert await victim.is_untouched()
        assert await step.get(CONFIG_MAPS, "web-settings") is None
        await victim.restore()
        await removing
    assert await victim.is_untouched()
    assert await step.releases("web") == []
