"""Which Clusters a Secret with a copied kubeconfig leads to, and what is asked for that."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from unwind.api.flux import SecretKey
from unwind.companions import kubeconfig_clusters
from unwind.companions.kubeconfig_clusters import KubeconfigClusters
from unwind.kube import kubeconfig
from unwind.kube.errors import UnreachableError
from unwind.members import targets
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from unwind.kube.client import Object
    from unwind.members.targets import AddonTarget

COPY = SecretKey(name="copy")


def secret(name: str, server: str, *, namespace: str = "shop", version: str = "1") -> Object:
    way = kubeconfig.ClusterConnection(server=server, credential=kubeconfig.Token("t"))
    text = kubeconfig.document(way, cluster="c", user="u")
    meta = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": version}
    return {"metadata": meta, "data": {"value": base64.b64encode(text.encode()).decode()}}


def target(name: str) -> AddonTarget:
    return targets.of_gone(targets.capi_ref("shop", name, uid=name))


class Hub:
    """A management cluster with Secrets, and members that are asked for their identity."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Object) -> None:
        self.secrets = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in found}
        self.read: list[str] = []
        self.asked: list[str] = []
        self.same = True
        self.clock = StillClock()
        monkeypatch.setattr(kubeconfig_clusters, "leads_to", self._leads_to)
        self.clusters = KubeconfigClusters(self, self, clock=self.clock)  # type: ignore[arg-type]  # a stand-in

    async def get(self, resource: Any, name: str, *, namespace: str) -> Object:
        del resource
        self.read.append(f"{namespace}/{name}")
        if (found := self.secrets.get((namespace, name))) is None:
            raise UnreachableError(f"cannot read {namespace}/{name}")
        return found

    @asynccontextmanager
    async def member(self, one: AddonTarget) -> AsyncIterator[Any]:
        self.asked.append(one.ref.name)
        yield SimpleNamespace()

    async def _leads_to(self, found: Object, key: str, member: Any) -> bool:
        del found, key, member
        return self.same


async def test_only_a_cluster_with_the_same_address_is_asked_once_for_each_state_of_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(
        monkeypatch,
        secret("copy", "https://one.example.dev", namespace="flux-system"),
        secret("one-kubeconfig", "https://one.example.dev"),
        secret("two-kubeconfig", "https://two.example.dev"),
    )
    both = (target("one"), target("two"))
    for _ in range(2):
        found = await hub.clusters.of("flux-system", COPY, both)
        assert [item.ref.name for item in found.known] == ["one"]
        assert found.unknown == ()
    assert hub.asked == ["one"]
    # The Secret is read each time, the addresses of the Clusters once.
    assert hub.read.count("flux-system/copy") == 2
    assert hub.read.count("shop/two-kubeconfig") == 1
    hub.secrets["flux-system", "copy"] = secret("copy", "https://one.example.dev", namespace="flux-system", version="2")
    hub.same = False
    assert (await hub.clusters.of("flux-system", COPY, both)).known == ()
    assert hub.asked == ["one", "one"]


async def test_a_missing_secret_and_an_unreadable_address_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, secret("one-kubeconfig", "https://one.example.dev"))
    found = await hub.clusters.of("flux-system", COPY, (target("one"),))
    assert (found.known, len(found.unknown)) == ((), 1)
    hub.secrets["flux-system", "copy"] = secret("copy", "https://one.example.dev", namespace="flux-system")
    found = await hub.clusters.of("flux-system", COPY, (target("one"), target("two")))
    assert [item.ref.name for item in found.known] == ["one"]
    assert [item.ref.name for item in found.unknown] == ["two"]
    assert hub.asked == ["one"]


async def test_the_secret_of_cluster_api_is_known_without_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    found = await hub.clusters.of("shop", SecretKey(name="one-kubeconfig"), (target("one"),))
    assert [item.ref.name for item in found.known] == ["one"]
    assert hub.read == []
