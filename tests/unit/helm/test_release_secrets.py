"""What Helm keeps of its releases."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest

from unwind.api.resources import Resource
from unwind.errors import UnwindError
from unwind.helm import release_secrets
from unwind.helm.release_secrets import ChartManifest, HelmRelease, HelmStatus, Revision, decode, is_own_hook

PAYLOAD = {
    "name": "web",
    "namespace": "shop",
    "version": 3,
    "info": {"status": "pending-upgrade", "last_deployed": "2026-01-02T03:04:05.123456789Z", "notes": "…"},
    "chart": {"metadata": {"name": "web", "version": "1.2.3", "appVersion": "9"}, "templates": []},
    "config": {"password": "secret"},
    "manifest": "---\n# Source: web/a.yaml\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"
    "---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b, namespace: else}}\n"
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  annotations: {helm.sh/resource-policy: Keep }\n",
    "hooks": [
        {
            "name": "bye",
            "manifest": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bye}\n",
            "events": ["pre-delete"],
        },
        {
            "name": "hello",
            "manifest": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: hello}\n",
            "events": ["pre-install"],
            "delete_policies": ["hook-succeeded"],
        },
    ],
}


def secret(payload: Any, *, zipped: bool = True) -> dict[str, Any]:
    body = msgspec.json.encode(payload)
    packed = base64.b64encode(gzip.compress(body) if zipped else body)
    metadata = {"name": "sh.helm.release.v1.web.v3", "namespace": "shop", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "data": {"release": base64.b64encode(packed).decode()}}


@pytest.mark.parametrize("zipped", [True, False])
def test_a_release_is_read_from_its_secret(zipped: bool) -> None:
    release = release_secrets.decode(secret(PAYLOAD, zipped=zipped))
    assert (release.name, release.namespace, release.version) == ("web", "shop", 3)
    assert (release.status, release.pending) == (HelmStatus.PENDING_UPGRADE, True)
    assert release.began == dt.datetime(2026, 1, 2, 3, 4, 5, 123457, tzinfo=dt.UTC)
    assert release.chart.metadata.app_version == "9"


def test_its_objects_are_known_with_hooks_and_what_is_kept() -> None:
    assert release_secrets.release_manifests(release_secrets.decode(secret(PAYLOAD))) == [
        ChartManifest("v1", "ConfigMap", "a"),
        ChartManifest("v1", "Secret", "b", namespace="else"),
        ChartManifest("v1", "ConfigMap", "c", kept=True),
        ChartManifest("batch/v1", "Job", "bye", hook=True, on_delete=True, replaced=True),
        ChartManifest("batch/v1", "Job", "hello", hook=True),
    ]


def test_a_secret_that_is_no_release_is_named() -> None:
    with pytest.raises(UnwindError, match=r"Helm release in Secret shop/sh\.helm\.release\.v1\.web\.v3: invalid data"):
        release_secrets.decode({"metadata": secret({})["metadata"], "data": {"release": "bm90aGluZw=="}})


def test_a_status_that_helm_has_learned_since_is_unknown() -> None:
    assert HelmRelease(name="web", info=release_secrets.Info(status="dreaming")).status is HelmStatus.UNKNOWN


def test_what_helm_printed_tells_crds_beside_templates_from_others() -> None:
    crd = (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.x.dev}\n"
        "spec: {group: x.dev, scope: Cluster, names: {plural: things, kind: Thing}, versions: [{name: v1}]}\n"
    )
    text = (
        f"---\n# Source: web/crds/thing.yaml\n{crd}---\n{crd}"
        f"---\n# Source: web/templates/thing.yaml\n{crd}"
        "---\n# Source: web/templates/bye.yaml\napiVersion: v1\nkind: Pod\nmetadata:\n  name: bye\n  annotations:\n"
        '    "helm.sh/hook": post-delete, pre-install\n    "helm.sh/hook-delete-policy": before-hook-creation\n'
    )
    serves = (Resource("x.dev", "v1", "things", "Thing", namespaced=False),)
    plain = ChartManifest("apiextensions.k8s.io/v1", "CustomResourceDefinition", "things.x.dev", serves=serves)
    forever = msgspec.structs.replace(plain, forever=True, kept=True)
    hook = ChartManifest("v1", "Pod", "bye", hook=True, on_delete=True, replaced=True)
    assert release_secrets.rendered_manifests(text) == [forever, forever, plain, hook]


class Client:
    """Takes one patch and one DELETE."""

    def __init__(self) -> None:
        self.patch: dict[str, Any] = {}
        self.deleted = ("", "", "")

    async def delete(self, _: Resource, name: str, *, uid: str, version: str, namespace: str) -> None:
        assert namespace == "shop"
        self.deleted = (name, uid, version)

    async def revise(self, _: Resource, read: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        assert read["metadata"]["resourceVersion"] == "7", "only as it was read"
        self.patch = patch
        return read | patch

    def written(self) -> dict[str, Any]:
        text = gzip.decompress(base64.b64decode(base64.b64decode(self.patch["data"]["release"])))
        return msgspec.json.decode(text, type=dict[str, Any])


def revision() -> Revision:
    kept = secret(PAYLOAD)
    return Revision(release_secrets.decode(kept), kept)


async def test_a_release_that_helm_died_over_is_marked_as_failed_and_nothing_else_of_it_changes() -> None:
    client = Client()
    await release_secrets.set_status(client, revision(), release_secrets.HelmStatus.FAILED, why="nobody was at it")  # type: ignore[arg-type]
    info = PAYLOAD["info"] | {"status": "failed", "description": "nobody was at it"}  # type: ignore[operator]
    assert client.written() == PAYLOAD | {"info": info}
    assert client.patch["metadata"] == {"labels": {"status": "failed"}}


async def test_a_revision_is_deleted_only_as_it_was_read() -> None:
    client = Client()
    await release_secrets.delete(client, revision())  # type: ignore[arg-type]
    assert client.deleted == ("sh.helm.release.v1.web.v3", "u", "7")


def test_hooks_of_the_uninstall_are_in_the_order_of_weight_and_name() -> None:
    hooks = [
        {"name": name, "weight": weight, "events": [event], "manifest": f"{{metadata: {{name: {name}}}}}"}
        for name, weight, event in [
            ("c", 1, "pre-delete"),
            ("b", 0, "post-delete"),
            ("a", 0, "pre-delete"),
            ("d", -1, "pre-delete"),
            ("e", -2, "pre-install"),
        ]
    ]
    found = release_secrets.uninstall_hooks(decode(secret({**PAYLOAD, "hooks": hooks})))
    assert [it.document["metadata"]["name"] for it in found] == ["d", "a", "b", "c"]
    assert all(it.manifest.on_delete and it.manifest.replaced for it in found)


def test_whose_an_object_is_is_told_by_helms_marks() -> None:
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    annotations = {"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": "shop"}
    obj = {"metadata": {"labels": labels, "annotations": annotations}}
    assert release_secrets.of_release(obj, namespace="shop", release="web")
    assert not release_secrets.of_release(obj, namespace="shop", release="other")
    assert not release_secrets.of_release(obj, namespace="other", release="web")
    assert not release_secrets.of_release({"metadata": {}}, namespace="shop", release="web")


def test_a_hook_is_what_helm_or_unwind_created_as_one() -> None:
    metadata = {"annotations": {"helm.sh/hook": "pre-delete"}, "managedFields": [{"manager": "helm"}]}
    assert release_secrets.is_hook({"metadata": metadata})
    by_unwind = metadata | {"managedFields": [{"manager": release_secrets.HOOK_MANAGER}]}
    assert release_secrets.is_hook({"metadata": by_unwind})
    assert not release_secrets.is_hook({"metadata": metadata | {"managedFields": [{"manager": "kubectl"}]}})
    assert not release_secrets.is_hook({"metadata": metadata | {"annotations": {}}})


def test_a_release_that_unpacks_without_end_is_refused() -> None:
    bomb = _bomb()
    assert len(bomb) < 1 << 20, "it fits a Secret"
    secret = {
        "metadata": {"name": "sh.helm.release.v1.web.v1", "namespace": "shop"},
        "data": {"release": base64.b64encode(base64.b64encode(bomb)).decode()},
    }
    tracemalloc.start()
    try:
        with pytest.raises(UnwindError, match=r"Secret shop/sh\.helm\.release\.v1\.web\.v1: larger than 16 MiB"):
            decode(secret)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def _bomb() -> bytes:
    """Half a gigabyte in half a megabyte, made piece by piece."""
    packing = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    return b"".join(packing.compress(zeros) for _ in range(512)) + packing.flush()


@pytest.mark.parametrize("data", [None, {}, {"release": 5}, {"release": "é"}, {"release": "AAAA"}])
def test_a_damaged_secret_holds_no_release(data: object) -> None:
    with pytest.raises(UnwindError):
        decode({"metadata": {"name": "x"}, "data": data})


@pytest.mark.parametrize(
    ("uid", "ours"), [("1", True), ("2", False), ("", True), (None, False)], ids=["same", "other", "intended", "none"]
)
def test_a_hook_is_ours_by_its_uid(uid: str | None, ours: bool) -> None:
    hook = {
        "metadata": {
            "uid": "1",
            "annotations": {"helm.sh/hook": "pre-install"},
            "managedFields": [{"manager": "helm"}],
        }
    }
    assert is_own_hook(hook, uid) is ours
    assert not is_own_hook({"metadata": {"uid": "1"}}, "")
