"""`unwind plan release/NAME` and `unwind delete release/NAME` with the real Helm, and the rights of their user."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.plane.support.helm_steps import KEPT, SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser
from tests.plane.support.objects import crd
from tests.plane.support.removals import stateful_set, until_claimed
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import CONFIG_MAPS, SECRETS, Resource
from unwind.cli.delete import delete
from unwind.cli.plan import plan
from unwind.errors import UnwindError, UsageError, WouldLeakError
from unwind.local import build, tools

if TYPE_CHECKING:
    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.testing.charts import ChartRepository


@pytest.fixture
async def user(it: TeardownScene, repository: ChartRepository, monkeypatch: pytest.MonkeyPatch) -> HelmUser:
    program = (await build.ensure([tools.HELM]))["helm"].path
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return await HelmUser.of(it, repository)


async def _planned(capsys: pytest.CaptureFixture[str], *, leaks: bool = False, **options: Any) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(WouldLeakError) if leaks else nullcontext():
        await plan("release/db", output="json", **options)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def _names(told: list[dict[str, Any]]) -> dict[str, str]:
    return {item["object"]["name"]: item["why"] for item in told}


def _going(told: dict[str, Any]) -> set[str]:
    return {ref["name"] for refs in told["objects"].values() for ref in refs}


async def test_a_plan_names_every_object_of_a_release_and_nothing_leaks(
    it: TeardownScene, user: HelmUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.install("db", "web")
    told = await _planned(capsys, namespace=user.namespace, kubeconfig=it.member.kubeconfig)
    assert (told["title"], told["total"], told["refused"]) == (f"release {user.namespace}/db", 2, False)
    assert _going(told) == {"db-web", "db-settings"}
    assert (told["staying"], told["leaks"]) == ([], [])


async def test_a_plan_exits_with_4_and_says_what_helm_leaves_behind(
    it: TeardownScene, user: HelmUser, repository: ChartRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    body = stateful_set("", "data", replicas=1)
    del body["metadata"]["namespace"]
    database = yaml.dump({"apiVersion": "apps/v1", "kind": "StatefulSet", **body})
    files = {
        "values.yaml": VALUES,
        "templates/a.yaml": SETTINGS,
        "templates/b.yaml": KEPT,
        "templates/c.yaml": database,
    }
    definition = crd(Resource("planned.helm.test", "v1", "gadgets", "Gadget"))
    repository.add("leaking", {**files, "crds/gadget.yaml": yaml.dump(definition)})
    await user.install("db", "leaking")
    await until_claimed(user.client, user.namespace, "data-data-0")
    told = await _planned(capsys, leaks=True, namespace=user.namespace, kubeconfig=it.member.kubeconfig)
    assert _going(told) == {"db-settings", "data"}
    leaks = _names(told["leaks"])
    assert leaks["db-kept"] == "Helm keeps it: annotation helm.sh/resource-policy"
    assert leaks["gadgets.planned.helm.test"] == "Helm keeps it: a CRD of the chart's crds directory"
    assert "data-data-0" in leaks
    assert (len(leaks), told["staying"]) == (3, [])
    with pytest.raises(WouldLeakError):
        await delete("release/db", dry_run=True, namespace=user.namespace, kubeconfig=it.member.kubeconfig)


async def test_a_release_on_a_member_is_planned_from_the_management_cluster(
    it: TeardownScene, user: HelmUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.install("db", "web")
    cluster = f"{it.namespace}/{it.name}"
    told = await _planned(capsys, namespace=user.namespace, cluster=cluster, kubeconfig=it.management.kubeconfig)
    assert _going(told) == {"db-web", "db-settings"}


async def test_a_dry_run_shows_the_plan_of_a_release_and_deletes_nothing(
    it: TeardownScene, user: HelmUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.install("db", "kept")
    place: dict[str, Any] = {"namespace": user.namespace, "kubeconfig": it.member.kubeconfig}
    planned = await _planned(capsys, leaks=True, **place)
    with pytest.raises(WouldLeakError):
        await delete("release/db", dry_run=True, output="json", **place)
    assert json.loads(capsys.readouterr().out) == planned
    with pytest.raises(UnwindError, match="more than --max-objects 0"):
        await delete("release/db", dry_run=True, max_objects=0, **place)
    labels = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
    await user.client.patch(CONFIG_MAPS, "db-settings", labels, namespace=user.namespace)
    with pytest.raises(UnwindError, match="db-settings"):
        await delete("release/db", dry_run=True, **place)
    assert await it.objects() == {"db-settings", "db-kept"}
    assert await user.secrets("db")


async def test_a_release_is_deleted_with_its_objects_and_without_a_manager(
    it: TeardownScene, user: HelmUser, capsys: pytest.CaptureFixture[str]
) -> None:
    await user.install("db", "kept")
    capsys.readouterr()
    place: dict[str, Any] = {"namespace": user.namespace, "kubeconfig": it.member.kubeconfig}
    await delete("release/db", yes=True, output="json", **place)
    told = json.loads(capsys.readouterr().out)
    assert told["gone"]
    assert [row["object"]["name"] for row in told["left"]] == ["db-kept"]
    assert await it.objects() == {"db-kept"}
    assert await user.secrets("db") == []
    with pytest.raises(UnwindError, match="not found"):
        await delete("release/db", yes=True, **place)


async def test_a_release_that_a_deployer_drives_is_not_deleted(
    it: TeardownScene, user: HelmUser, repository: ChartRepository
) -> None:
    label = "-settings\n      labels: {helm.toolkit.fluxcd.io/name: apps}\n"
    repository.add("driven", {"values.yaml": VALUES, "templates/a.yaml": SETTINGS.replace("-settings\n", label)})
    await user.install("db", "driven")
    with pytest.raises(UnwindError, match="Flux HelmRelease apps drives it and would install it again"):
        await delete("release/db", yes=True, namespace=user.namespace, kubeconfig=it.member.kubeconfig)
    assert await it.objects() == {"db-settings"}


async def test_a_protected_object_refuses_the_deletion_of_its_release(it: TeardownScene, user: HelmUser) -> None:
    await user.install("db", "web")
    labels = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
    await user.client.patch(CONFIG_MAPS, "db-settings", labels, namespace=user.namespace)
    with pytest.raises(UnwindError, match="db-settings"):
        await delete("release/db", yes=True, namespace=user.namespace, kubeconfig=it.member.kubeconfig)
    assert await it.objects() == {"db-settings"}
    assert await user.secrets("db")


async def test_a_user_without_the_right_to_delete_objects_does_not_borrow_one(
    it: TeardownScene, user: HelmUser
) -> None:
    await user.install("db", "settings")
    # May read everything, and delete release Secrets only.
    reader = it.member.write_kubeconfig(f"reader-{user.namespace}")
    await _grant(it, f"reader-{user.namespace}")
    with pytest.raises(UnwindError, match="timed out"):
        await delete("release/db", yes=True, timeout="4s", output="json", namespace=user.namespace, kubeconfig=reader)
    assert await it.objects() == {"db-settings"}


async def test_cluster_is_only_for_releases(it: TeardownScene) -> None:
    with pytest.raises(UsageError, match="--cluster does not apply to ns/shop"):
        await plan("ns/shop", cluster="prod", kubeconfig=it.management.kubeconfig)


async def _grant(it: TeardownScene, name: str) -> None:
    client = it.member.client
    api = "rbac.authorization.k8s.io"
    roles = Resource(api, "v1", "clusterroles", "ClusterRole", namespaced=False)
    bindings = Resource(api, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [SECRETS.group], "resources": [SECRETS.plural], "verbs": ["*"]},
    ]
    body: dict[str, Any] = {"apiVersion": f"{api}/v1", "metadata": {"name": name}}
    await client.create(roles, {**body, "kind": "ClusterRole", "rules": rules})
    role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
    subjects = [{"apiGroup": api, "kind": "User", "name": name}]
    await client.create(bindings, {**body, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects})
