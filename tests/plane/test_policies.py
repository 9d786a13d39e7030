"""TeardownPolicies on a real API server: selection, merging, provenance, releases, and the finalizer on handles."""

from __future__ import annotations

import base64
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio
import yaml

from tests.plane.support import cluster_moves
from tests.plane.support.cluster_teardowns import scene, waves
from tests.plane.support.controllers import HOLD, removal_deps
from tests.plane.support.example_deployer import CLEANUP, DEPLOYED_BY_LABEL, deployed, running_deployer
from tests.plane.support.flux_sources import config_map
from tests.plane.support.helm_steps import SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser, helm_program
from tests.plane.support.objects import until_allowed, until_refused
from tests.plane.support.policies import (
    COPY,
    DEPLOYMENTS,
    LABEL,
    HubDeployer,
    MemberDeployer,
    PolicyScene,
    install_handles,
)
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.features import Feature
from unwind.api.meta import find, is_true
from unwind.api.names import (
    DEADLINE_ANNOTATION,
    DELETE_FOR_MOVE_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    FORCE_RELEASE_GROUPS_ANNOTATION,
    HELM_HOOK_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    RESELECT_ANNOTATION,
    ConditionType,
    Finalizer,
    Reason,
)
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Cause, Phase
from unwind.cli.plan import plan
from unwind.companions.policy_gate_source import PolicyGateSource
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.companions.step_source import CompanionSteps
from unwind.install.manifests import resource_of
from unwind.install.tenant_policies import TENANTS
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until
from unwind.members import targets
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.api.policies import TeardownPolicy
    from unwind.api.unwind import Teardown
    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[PolicyScene]:
    made = PolicyScene(await scene(plane, namespace))
    await install_handles(made.cluster)
    await made.label(made.cluster.name)
    yield made
    for policy in await made.client.list(TEARDOWN_POLICIES):
        meta = policy["metadata"]
        if meta["name"].startswith(made.cluster.name):
            await made.client.delete(TEARDOWN_POLICIES, meta["name"], uid=meta["uid"])


def selects_one(policy: TeardownPolicy) -> bool:
    return policy.status.selected == 1


async def test_a_relabelled_cluster_stays_selected_and_is_named_until_the_policy_selects_again(it: PolicyScene) -> None:
    await it.policy("prod")
    async with it.manager():
        found = await it.until_policy("prod", selects_one, "selecting")
        [cluster] = found.status.clusters
        assert (cluster.name, cluster.gate, cluster.no_longer_matches) == (it.cluster.name, "Armed", False)
        await it.label("other")
        still = await it.until_policy(
            "prod", lambda one: is_true(one.status.conditions, ConditionType.STILL_SELECTED), "still selecting"
        )
        assert still.status.selected == 1
        said = find(still.status.conditions, ConditionType.STILL_SELECTED)
        assert said
        assert it.cluster.name in said.message
        # Another manager believes what the first one recorded.
    async with it.manager():
        patch = {"metadata": {"annotations": {RESELECT_ANNOTATION: "1"}}}
        await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), patch)
        gone = await it.until_policy("prod", lambda one: one.status.selected == 0, "selecting nothing")
        assert find(gone.status.conditions, ConditionType.STILL_SELECTED) is None


async def test_a_cluster_whose_namespace_was_relabelled_stays_selected_and_is_named_until_the_policy_selects_again(
    it: PolicyScene,
) -> None:
    async def label_namespace(value: str | None) -> None:
        await it.client.patch(NAMESPACES, it.cluster.namespace, {"metadata": {"labels": {LABEL: value}}})

    await label_namespace("prod")
    await it.policy("prod", namespaceSelector={"matchLabels": {LABEL: "prod"}})
    async with it.manager():
        await it.until_policy("prod", selects_one, "selecting")
        await label_namespace(None)
        still = await it.until_policy(
            "prod", lambda one: is_true(one.status.conditions, ConditionType.STILL_SELECTED), "still selecting"
        )
        [cluster] = still.status.clusters
        assert (cluster.name, cluster.no_longer_matches) == (it.cluster.name, True)
        # Another manager believes what the first one recorded.
    async with it.manager():
        patch = {"metadata": {"annotations": {RESELECT_ANNOTATION: "1"}}}
        await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), patch)
        await it.until_policy("prod", lambda one: one.status.selected == 0, "selecting nothing")


async def test_a_cluster_that_is_relabelled_after_a_change_of_its_policy_that_no_manager_saw_is_torn_down_by_it(
    it: PolicyScene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    async with it.manager():
        await it.until_policy("prod", selects_one, "selecting")
    await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), {"spec": {"order": [["apps"]]}})
    await it.label(None)
    found = await it.client.get(TEARDOWN_POLICIES, it.called("prod"))
    file = tmp_path / "policy.yaml"
    meta = {"name": it.called("prod")}
    file.write_text(yaml.dump({"metadata": meta, **{key: found[key] for key in ("apiVersion", "kind", "spec")}}))
    await plan(policy=file, output="json", kubeconfig=it.cluster.management.kubeconfig)
    [shown] = json.loads(capsys.readouterr().out)["clusters"]
    assert shown["name"] == it.cluster.name
    await it.cluster.delete()
    async with it.manager():
        # The deployer does not run.
        held = await it.cluster.teardown(lambda one: one.phase is Phase.HELD, "held")
        assert held.spec.plan
        [step] = held.spec.plan.steps
        assert (step.effort, step.effort_from) == ("Enforce", f"TeardownPolicy/{it.called('prod')}")
    async with it.manager(), running_deployer(it.cluster):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_a_cluster_that_was_relabelled_is_torn_down_by_its_policy_and_annotations_cannot_loosen_it(
    it: PolicyScene,
) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod", deadline="2h", onDeadline="Hold")
    async with it.manager():
        await it.until_policy("prod", selects_one, "selecting")
        await it.label(None)
        await it.until_policy("prod", lambda one: one.status.clusters[0].no_longer_matches, "still selecting")
        it.cluster.annotations = {DEADLINE_ANNOTATION: "1s", ON_DEADLINE_ANNOTATION: "Release"}
        await it.cluster.delete()
        # The deployer does not run.
        held = await it.cluster.teardown(lambda one: one.phase is Phase.HELD, "held")
        assert held.spec.plan
        [step] = held.spec.plan.steps
        assert (step.effort, step.effort_from) == ("Enforce", f"TeardownPolicy/{it.called('prod')}")
        assert (held.spec.deadline, held.spec.on_deadline) == ("2h", "Hold")
        assert held.spec.deadline_from == held.spec.on_deadline_from == f"TeardownPolicy {it.called('prod')}"
        [policy] = held.spec.policies
        assert (policy.name, policy.generation, policy.enforces) == (it.called("prod"), 1, True)
    async with it.manager(), running_deployer(it.cluster):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


async def pretend_a_move(it: PolicyScene) -> Teardown:
    """Delete the cluster as `clusterctl move` does, with annotations that would loosen its policies; its Teardown."""
    loose = {DEADLINE_ANNOTATION: "1s", ON_DEADLINE_ANNOTATION: "Release"}
    await cluster_moves.pause(it.client, it.cluster.name, it.cluster.namespace)
    it.cluster.annotations = {DELETE_FOR_MOVE_ANNOTATION: "", **loose}
    await it.cluster.delete()
    return await it.cluster.teardown(lambda one: one.spec.cause == Cause.MOVED, "recorded as moved")


async def end_the_move(it: PolicyScene) -> None:
    await it.cluster.annotate({DELETE_FOR_MOVE_ANNOTATION: None})
    await cluster_moves.pause(it.client, it.cluster.name, it.cluster.namespace, paused=False)


async def test_a_cluster_that_only_pretended_to_be_moved_is_held_by_its_policies(it: PolicyScene) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod", deadline="2h", onDeadline="Hold")
    async with it.manager():
        await it.until_policy("prod", selects_one, "selecting")
        moved = await pretend_a_move(it)
        assert [policy.name for policy in moved.spec.policies] == [it.called("prod")]
        assert (moved.spec.deadline, moved.spec.on_deadline) == ("2h", "Hold")
        assert isinstance(deletion_gate.of_teardown(it.cluster.uid, moved), GateClosed)
        await end_the_move(it)
        held = await it.cluster.teardown(
            lambda one: one.spec.cause == Cause.CLUSTER_DELETED and one.phase is Phase.HELD, "held"
        )
        assert held.spec.plan
        assert [(step.name, step.effort) for step in held.spec.plan.steps] == [
            (f"ConfigMap/{it.cluster.on_member}/apps", "Enforce")
        ]
        assert [policy.name for policy in held.spec.policies] == [it.called("prod")]
        assert (held.spec.deadline, held.spec.on_deadline) == ("2h", "Hold")
        # A user without rights on the policy.
        await it.cluster.annotate({FORCE_RELEASE_ANNOTATION: "now", FORCE_RELEASE_BY_ANNOTATION: "jane"})
        ignored = await it.cluster.teardown(
            lambda one: is_true(one.status.conditions, ConditionType.RELEASE_IGNORED), "naming the release"
        )
        assert not ignored.finished
        assert await it.cluster.objects() == {"apps", "apps-0"}
    async with it.manager(), running_deployer(it.cluster):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_a_cluster_with_the_annotation_of_clusterctl_alone_is_deleted_by_its_policies(it: PolicyScene) -> None:
    """`clusterctl move` pauses a Cluster before it deletes it."""
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    async with it.manager(), running_deployer(it.cluster):
        it.cluster.annotations = {DELETE_FOR_MOVE_ANNOTATION: ""}
        await it.cluster.delete()
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


@pytest.mark.parametrize("first", ["move", "deletion"])
async def test_what_could_not_be_read_during_a_pretended_move_is_in_the_plan(it: PolicyScene, first: str) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    secret, where = f"{it.cluster.name}-kubeconfig", it.cluster.namespace
    data = (await it.cluster.secret())["data"]
    broken = {"data": {"value": base64.b64encode(b"broken").decode()}}
    await it.client.patch(SECRETS, secret, broken, namespace=where)
    async with it.manager() as teardowns:
        if first == "deletion":
            await held_for_unknown_value(it)
            await it.cluster.annotate({DELETE_FOR_MOVE_ANNOTATION: ""})
            await cluster_moves.pause(it.client, it.cluster.name, where)
            # The caches have that when they have what comes after it.
            await it.label("other")
            await it.until_policy(
                "prod", lambda one: is_true(one.status.conditions, ConditionType.STILL_SELECTED), "still selecting"
            )
            await teardowns._reconcile(Key(where, it.cluster.name))
        else:
            moved = await pretend_a_move(it)
            assert moved.spec.plan
            assert isinstance(deletion_gate.of_teardown(it.cluster.uid, moved), GateClosed)
        await end_the_move(it)
        held = await it.cluster.teardown(
            lambda one: (
                one.spec.cause == Cause.CLUSTER_DELETED and is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE)
            ),
            "held",
        )
        assert held.spec.plan is None
        await it.client.patch(SECRETS, secret, {"data": data}, namespace=where)
        planned = await it.cluster.teardown(lambda one: one.spec.plan is not None, "planned")
        assert planned.spec.plan
        assert [step.effort for step in planned.spec.plan.steps] == ["Enforce"]
    async with it.manager(), running_deployer(it.cluster):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_a_step_that_one_policy_enforces_and_another_leaves_waits_by_name_and_stays(it: PolicyScene) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    await it.policy("careful", effort="Leave")
    async with it.manager(), running_deployer(it.cluster):
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any(item.reason == Reason.POLICY_CONFLICT for item in one.status.blockers), "in conflict"
        )
        [blocker] = held.status.blockers
        assert (
            f"enforced by TeardownPolicy {it.called('prod')}, but left in place by TeardownPolicy"
            f" {it.called('careful')}:" in blocker.message
        )
        assert blocker.actor
        assert await it.cluster.objects() == {"apps", "apps-0"}
        await it.delete_policy("careful")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_the_order_of_a_policy_crosses_deployers(it: PolicyScene, repository: ChartRepository) -> None:
    """`apps` and `base` are handles of one deployer, and `db` is a release of plain Helm between them."""
    user = await HelmUser.of(it.cluster, repository)
    await user.install("db", "settings")
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await deployed(it.cluster, "base", objects=["base-0"])
    helm = {"kind": "Helm", "effort": "Enforce", "selector": {"namespaces": [it.cluster.on_member], "names": ["*"]}}
    sources = [{"kind": "Flux", "effort": "Enforce"}, helm]
    await it.policy("prod", sources=sources, order=[["apps"], ["Release/*/db"], ["base"]])
    async with it.manager(helm=await helm_program()), running_deployer(it.cluster):
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert ended.spec.plan
    assert waves(ended) == {"apps": 1, "db": 2, "base": 3}
    assert ended.spec.order_from == f"TeardownPolicy {it.called('prod')}"
    order = it.cluster.deleted()
    assert order.index("apps-0") < order.index("db-settings") < order.index("base-0")
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


async def test_the_name_of_a_release_alone_does_not_let_its_hooks_act_with_the_rights_of_unwind(
    it: PolicyScene, repository: ChartRepository
) -> None:
    """Users of every namespace that the wildcard matches could store a release with that name."""
    where = it.cluster.on_member
    hook = {"metadata": {"name": where, "annotations": {HELM_HOOK_ANNOTATION: "pre-delete"}}, "rules": []}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", **hook}
    repository.add(
        "reaching", {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/b.yaml": json.dumps(role)}
    )
    await (await HelmUser.of(it.cluster, repository)).install("db", "reaching")
    source = {"kind": "Helm", "effort": "Enforce", "selector": {"names": ["db"], "namespaces": [f"{where}*"]}}
    await it.policy("prod", sources=[source])
    async with it.manager(helm=await helm_program()):
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any("its hooks would create" in item.message for item in one.status.blockers), "held"
        )
        assert "name the release and its namespace in a TeardownPolicy" in held.status.blockers[0].message
        assert await it.cluster.objects() == {"db-settings"}
    # A manager that starts reads the policies at once.
    source["selector"] = {"names": ["db"], "namespaces": [where]}
    await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), {"spec": {"sources": [source]}})
    async with it.manager(helm=await helm_program()):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


async def test_a_policy_enforces_a_profile_and_orders_it_before_a_handle(it: PolicyScene) -> None:
    await it.cluster.add_on("monitoring", behaviour="RemovePolicies", objects=1, finalizers=(HOLD,))
    await deployed(it.cluster, "apps", objects=["apps-0"])
    profile = it.cluster.profile("monitoring")
    sources = [
        {"kind": "Flux", "effort": "Enforce"},
        {"kind": "Profile", "effort": "Enforce", "selector": {"names": ["monitoring-*"]}},
    ]
    await it.policy("prod", sources=sources, order=[[profile], ["apps"]])
    async with it.manager(addons=True), running_deployer(it.cluster):
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any(item.object.name == "monitoring-0" for item in one.status.blockers), "held at the add-on"
        )
        assert held.spec.plan
        steps = {step.name: (step.wave, step.effort, step.effort_from) for step in held.spec.plan.steps}
        by = f"TeardownPolicy/{it.called('prod')}"
        assert steps == {
            f"ClusterProfile/{profile}": (1, "Enforce", by),
            f"ConfigMap/{it.cluster.on_member}/apps": (2, "Enforce", by),
        }
        assert {"apps", "apps-0"} <= await it.cluster.objects()
        patch = {"metadata": {"finalizers": None}}
        await it.cluster.member.client.patch(CONFIG_MAPS, "monitoring-0", patch, namespace=it.cluster.on_member)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


async def test_a_profile_that_says_leave_is_kept_although_a_policy_enforces_it(it: PolicyScene) -> None:
    summary = await it.cluster.add_on("monitoring", behaviour="LeavePolicies", objects=1)
    await it.policy("prod", sources=[{"kind": "Profile", "effort": "Enforce"}])
    async with it.manager(addons=True):
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any(item.reason == Reason.POLICY_CONFLICT for item in one.status.blockers), "in conflict"
        )
        said = f"{it.called('prod')}, but left in place by clusterDeletionBehavior of ClusterProfile/"
        assert said in held.status.blocked_by
        # Without the policy, the profile alone decides that nothing is deleted.
        await it.delete_policy("prod")
        await it.cluster.teardown(
            lambda one: "nothing of it is deleted until that changes" in one.status.blocked_by,
            "held by the profile",
        )
        assert await it.cluster.objects() == {"monitoring-0"}
        changed = {"spec": {"clusterProfileSpec": {"clusterDeletionBehavior": "RemovePolicies"}}}
        await it.client.patch(CLUSTER_SUMMARIES, summary.name, changed, namespace=summary.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.let_go()


async def test_a_policy_that_leaves_a_profile_keeps_its_objects_and_does_not_hold(it: PolicyScene) -> None:
    await it.cluster.add_on("monitoring", behaviour="RemovePolicies", objects=1)
    await it.policy("careful", sources=[{"kind": "Profile", "effort": "Leave"}])
    async with it.manager(addons=True):
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1)
    assert ended.spec.plan
    [step] = ended.spec.plan.steps
    assert (step.effort, step.effort_from) == ("Leave", f"TeardownPolicy/{it.called('careful')}")
    assert await it.cluster.objects() == {"monitoring-0"}
    await it.cluster.let_go()


async def _grant_update(it: PolicyScene, group: str) -> None:
    await it.grant(group, {"apiGroups": ["unwind.dev"], "resources": ["teardownpolicies"], "verbs": ["update"]})


async def test_a_release_counts_only_from_a_user_who_may_update_the_policy(it: PolicyScene) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    group = it.called("admins")
    await _grant_update(it, group)
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: one.phase is Phase.HELD, "held")
        # As the webhook records it.
        await it.cluster.annotate({FORCE_RELEASE_ANNOTATION: "now", FORCE_RELEASE_BY_ANNOTATION: "jane"})
        ignored = await it.cluster.teardown(
            lambda one: is_true(one.status.conditions, ConditionType.RELEASE_IGNORED), "naming the release"
        )
        assert not ignored.finished
        said = find(ignored.status.conditions, ConditionType.RELEASE_IGNORED)
        assert said
        assert "by jane is ignored" in said.message
        assert it.called("prod") in said.message
        await it.cluster.annotate(
            {
                FORCE_RELEASE_ANNOTATION: "really",
                FORCE_RELEASE_BY_ANNOTATION: "kim",
                FORCE_RELEASE_GROUPS_ANNOTATION: f"system:authenticated\n{group}",
            }
        )
        ended = await it.cluster.ended()
        assert ended.phase is Phase.RELEASED
        assert ended.status.release
        assert ended.status.release.by == "kim"
    await it.cluster.let_go()


@asynccontextmanager
async def _attribution(it: PolicyScene) -> AsyncIterator[None]:
    """The admission policy of the manager about annotations that name a user, once it is in force."""
    setting = Setting(namespace=it.called("home"), features=frozenset({Feature.CAPI}))
    made = [(resource_of(item), await it.client.apply(resource_of(item), item)) for item in TENANTS.manifests(setting)]
    yield
    for resource, item in reversed(made):
        await it.client.delete(resource, item["metadata"]["name"], uid=item["metadata"]["uid"])


async def test_an_ordinary_user_releases_a_cluster_only_with_rights_of_its_own(plane: Plane, it: PolicyScene) -> None:
    """Without the webhook: the users write the annotations, and the API server refuses what is not true."""
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    admins, writers = it.called("admins"), it.called("writers")
    await _grant_update(it, admins)
    clusters = {"apiGroups": [CLUSTERS.group], "resources": ["clusters"], "verbs": ["get", "patch"]}
    await it.grant(writers, clusters)
    connect = plane.management.connection
    async with (
        _attribution(it),
        Client(connect("jane", groups=[writers])) as jane,
        Client(connect("kim", groups=[writers, admins])) as kim,
        it.manager(),
    ):

        async def annotate(client: Client, by: str | None, groups: str | None, release: str | None) -> None:
            said = {
                FORCE_RELEASE_ANNOTATION: release,
                FORCE_RELEASE_BY_ANNOTATION: by,
                FORCE_RELEASE_GROUPS_ANNOTATION: groups,
            }
            patch = {"metadata": {"annotations": said}}
            await client.patch(CLUSTERS, it.cluster.name, patch, namespace=it.cluster.namespace)

        await until_allowed(lambda: annotate(jane, None, None, None))
        await until_refused(lambda: annotate(jane, "kim", None, "now"), "must name the user of the request, jane")
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: one.phase is Phase.HELD, "held")
        # Groups that she does not have, one of hers less, or those of another user.
        mine, theirs = f"{writers}\nsystem:authenticated", f"{writers}\n{admins}\nsystem:authenticated"
        for claim in (admins, writers, theirs, "system:masters"):
            with pytest.raises(ApiError, match="must name the user of the request"):
                await annotate(jane, "jane", claim, "now")
        # The truth is allowed, and does not count.
        await annotate(jane, "jane", mine, "now")
        ignored = await it.cluster.teardown(
            lambda one: is_true(one.status.conditions, ConditionType.RELEASE_IGNORED), "naming the release"
        )
        assert not ignored.finished
        await annotate(kim, None, None, None)
        # What a user with rights has left behind does not count for another one.
        await annotate(kim, "kim", theirs, None)
        with pytest.raises(ApiError, match="must name the user of the request, jane"):
            await jane.patch(
                CLUSTERS,
                it.cluster.name,
                {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "again"}}},
                namespace=it.cluster.namespace,
            )
        assert not (await it.cluster.teardown(lambda _: True, "there")).finished
        await annotate(kim, "kim", theirs, "now")
        ended = await it.cluster.ended()
    assert ended.phase is Phase.RELEASED
    assert ended.status.release
    assert ended.status.release.by == "kim"
    await it.cluster.let_go()


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": [{"kind": "Argo", "effort": "Enforce"}]},
        {"sources": [{"kind": "Flux", "effort": "Must"}]},
        {"sources": [{"kind": "Helm", "effort": "Try"}]},
        {"sources": [{"kind": "Work", "effort": "Leave"}]},
        {"sources": [{"kind": "Flux", "effort": "Enforce", "suspended": "Purge"}]},
        {"sources": [{"kind": "HelmReleaseProxy", "effort": "Enforce", "suspended": "Remove"}]},
        {"sources": []},
        {"onDeadline": "Panic"},
        {"deadline": "soon"},
        {"clusterSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
        {"clusterSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
    ],
    ids=[
        "kind",
        "effort",
        "no selector",
        "Works",
        "suspended",
        "suspended proxies",
        "no sources",
        "onDeadline",
        "deadline",
        "operator",
        "no values",
    ],
)
async def test_the_api_server_refuses_unknown_words(it: PolicyScene, wrong: Object) -> None:
    with pytest.raises(ApiError) as refused:
        await it.policy("wrong", **wrong)
    assert refused.value.code == 422


async def held_for_unknown_value(it: PolicyScene) -> Teardown:
    """Delete the cluster; its Teardown, as soon as an unknown value holds it."""
    await it.cluster.delete()
    return await it.cluster.teardown(lambda one: is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE), "held")


async def test_a_policy_for_a_deployer_whose_feature_is_not_installed_holds(it: PolicyScene) -> None:
    source = {"kind": "Helm", "effort": "Enforce", "selector": {"names": ["*"]}}
    await it.policy("prod", sources=[source])
    async with it.manager():
        held = await held_for_unknown_value(it)
        assert held.spec.plan is None
        said = find(held.status.conditions, ConditionType.UNKNOWN_VALUE)
        assert said
        assert "the feature for source Helm is not installed" in said.message
    await it.cluster.let_go()


async def test_a_plan_that_waited_for_a_policy_has_the_deadline_of_the_corrected_policy(it: PolicyScene) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    helm = {"kind": "Helm", "effort": "Enforce", "selector": {"names": ["*"]}}
    await it.policy("prod", sources=[helm])
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE), "held"
        )
        assert (held.spec.plan, held.spec.deadline) == (None, "")
        spec = {"sources": [{"kind": "Flux", "effort": "Enforce"}], "deadline": "2h", "onDeadline": "Release"}
        await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), {"spec": spec})
        planned = await it.cluster.teardown(lambda one: one.spec.plan is not None, "planned")
        assert (planned.spec.deadline, planned.spec.on_deadline) == ("2h", "Release")
        assert planned.spec.deadline_from == planned.spec.on_deadline_from == f"TeardownPolicy {it.called('prod')}"
        [policy] = planned.spec.policies
        assert policy.generation == 2
    async with it.manager(), running_deployer(it.cluster):
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


def _held(found: Object | None) -> bool:
    return Finalizer.HANDLE.value in ((found or {}).get("metadata", {}).get("finalizers") or ())


async def test_handles_and_the_kubeconfig_are_held_from_the_selection_to_the_end_of_the_policy(it: PolicyScene) -> None:
    await it.handle("before")
    await it.policy("prod")
    secret = f"{it.cluster.name}-kubeconfig"
    async with it.manager():
        await it.until_handle("before", _held, "held")
        await it.handle("after")
        await it.until_handle("after", _held, "held")
        await until(it.client, SECRETS, secret, _held, "held", namespace=it.cluster.namespace)
        found = await it.until_policy("prod", lambda one: one.status.steps == 2, "two steps")
        assert found.status.clusters[0].steps == 2
        await it.delete_policy("prod")
        for name in ("before", "after"):
            await it.until_handle(name, lambda one: not _held(one), "free")
        await until(it.client, SECRETS, secret, lambda one: not _held(one), "free", namespace=it.cluster.namespace)


async def test_the_status_lists_a_handle_in_a_namespace_that_no_policy_names(it: PolicyScene) -> None:
    elsewhere = await it.elsewhere()
    await it.handle("near")
    ref = {"namespace": it.cluster.namespace, "name": it.cluster.name}
    meta = {"name": "far", "namespace": elsewhere}
    body = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": meta}
    await it.client.create(DEPLOYMENTS, {**body, "spec": {"clusterRef": ref}})
    await it.policy("prod")
    async with it.manager():
        found = await it.until_policy("prod", lambda one: bool(one.status.steps), "a step")
        [cluster] = found.status.clusters
        assert (cluster.steps, cluster.not_steps) == (1, (f"Handle/{elsewhere}/far",))


async def test_a_handle_that_is_deleted_in_normal_operation_goes_when_its_deployer_is_done(it: PolicyScene) -> None:
    made = await it.handle("apps", finalizers=["deployer.example.dev/cleanup"])
    await it.policy("prod")
    async with it.manager():
        await it.until_handle("apps", _held, "held")
        uid, where = made["metadata"]["uid"], it.cluster.namespace
        await it.client.delete(DEPLOYMENTS, "apps", uid=uid, namespace=where)
        patch = {"metadata": {"finalizers": [Finalizer.HANDLE.value]}}
        await it.client.patch(DEPLOYMENTS, "apps", patch, namespace=where)
        await it.until_handle("apps", lambda one: one is None, "gone")


async def test_a_step_keeps_its_handle_in_another_namespace_until_it_is_verified(it: PolicyScene) -> None:
    # Its Cluster is not known by its name, like that of a Kustomization with a copied kubeconfig.
    elsewhere = f"{it.cluster.namespace}-elsewhere"
    await it.cluster.management.create_namespace(elsewhere)
    made = config_map("apps-0", it.cluster.on_member, labels={DEPLOYED_BY_LABEL: "apps"}, finalizers=[HOLD])
    uid = (await it.cluster.member.client.create(CONFIG_MAPS, made))["metadata"]["uid"]

    async def handle(name: str, finalizer: str, **spec: str) -> None:
        metadata = {"name": name, "namespace": elsewhere, "finalizers": [finalizer]}
        body = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": metadata, "spec": spec}
        await it.client.create(DEPLOYMENTS, body)

    async def until_handle(name: str, state: Callable[[Object | None], bool], called: str) -> None:
        await until(it.client, DEPLOYMENTS, name, state, called, namespace=elsewhere)

    await handle("apps", CLEANUP, entries="apps-0")
    await it.policy("prod", sources=[{"kind": "Flux", "effort": "Enforce", "namespaces": [elsewhere]}])
    async with it.manager(deployer=HubDeployer(it.cluster)):
        await it.cluster.delete()
        await until_handle("apps", lambda one: _held(one) and _terminating(one), "deleted")
        await it.cluster.member.client.delete(CONFIG_MAPS, "apps-0", uid=uid, namespace=it.cluster.on_member)
        done = {"metadata": {"finalizers": [Finalizer.HANDLE.value]}}
        await it.client.patch(DEPLOYMENTS, "apps", done, namespace=elsewhere)
        await it.cluster.teardown(lambda one: "apps-0" in one.status.blocked_by, "held at apps-0")
        # One that is no step is let go.
        await handle("free", Finalizer.HANDLE.value)
        await until_handle("free", lambda one: not _held(one), "free")
        assert _held(await it.client.get(DEPLOYMENTS, "apps", namespace=elsewhere))
        free = {"metadata": {"finalizers": None}}
        await it.cluster.member.client.patch(CONFIG_MAPS, "apps-0", free, namespace=it.cluster.on_member)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
        await until_handle("apps", lambda one: one is None, "gone")
    await it.cluster.let_go()


def _naming(namespace: str) -> list[Object]:
    """The sources of a policy that names another namespace."""
    return [{"kind": "Flux", "effort": "Enforce", "namespaces": [namespace]}]


async def test_a_handle_with_a_copied_kubeconfig_is_held_while_a_policy_names_its_namespace(it: PolicyScene) -> None:
    elsewhere = await it.elsewhere()
    hub = kubeconfig.document(it.client.connection, cluster="hub", user="unwind")
    await it.copy_kubeconfig(elsewhere, "hub", {"value": base64.b64encode(hub.encode()).decode()})
    await it.handle_elsewhere("another", elsewhere, secret="hub")  # noqa: S106 - a name
    await it.handle_elsewhere("before", elsewhere)
    await it.policy("prod", sources=_naming(elsewhere))
    async with it.manager():
        await it.until_handle("before", _held, "held", namespace=elsewhere)
        made = await it.handle_elsewhere("after", elsewhere)
        await it.until_handle("after", _held, "held", namespace=elsewhere)
        assert not _held(await it.client.get(DEPLOYMENTS, "another", namespace=elsewhere))
        # One that is deleted in normal operation goes.
        await it.client.delete(DEPLOYMENTS, "after", uid=made["metadata"]["uid"], namespace=elsewhere)
        await it.until_handle("after", lambda one: one is None, "gone", namespace=elsewhere)
        await it.delete_policy("prod")
        await it.until_handle("before", lambda one: not _held(one), "free", namespace=elsewhere)


async def test_a_handle_elsewhere_that_is_deleted_together_with_its_cluster_is_verified(it: PolicyScene) -> None:
    # One commit removes both, and the deployer lets go at once.
    elsewhere = await it.elsewhere()
    made = config_map("apps-0", it.cluster.on_member, labels={DEPLOYED_BY_LABEL: "apps"}, finalizers=[HOLD])
    await it.cluster.member.client.create(CONFIG_MAPS, made)
    handle = await it.handle_elsewhere("apps", elsewhere, entries="apps-0")
    await it.policy("prod", sources=_naming(elsewhere))
    async with it.manager(deployer=HubDeployer(it.cluster)):
        await it.until_handle("apps", _held, "held", namespace=elsewhere)
        await it.client.delete(DEPLOYMENTS, "apps", uid=handle["metadata"]["uid"], namespace=elsewhere)
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: "apps-0" in one.status.blocked_by, "held at apps-0")
        assert _held(await it.client.get(DEPLOYMENTS, "apps", namespace=elsewhere))
        where = it.cluster.on_member
        left = await it.cluster.member.client.get(CONFIG_MAPS, "apps-0", namespace=where)
        await it.cluster.member.client.delete(CONFIG_MAPS, "apps-0", uid=left["metadata"]["uid"], namespace=where)
        await it.cluster.member.client.patch(CONFIG_MAPS, "apps-0", {"metadata": {"finalizers": None}}, namespace=where)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
        await it.until_handle("apps", lambda one: one is None, "gone", namespace=elsewhere)
    await it.cluster.let_go()


@pytest.mark.parametrize("end", [Phase.COMPLETE, Phase.RELEASED, Phase.TARGET_GONE])
async def test_handles_and_the_kubeconfig_are_let_go_at_each_end_of_a_teardown(it: PolicyScene, end: Phase) -> None:
    await deployed(it.cluster, "apps", objects=["apps-0"])
    elsewhere = await it.elsewhere()
    await it.policy("prod", sources=_naming(elsewhere))
    await it.handle("hub")
    await it.handle_elsewhere("far", elsewhere)
    secret, where = f"{it.cluster.name}-kubeconfig", it.cluster.namespace
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(it.manager())
        await it.until_handle("hub", _held, "held")
        await it.until_handle("far", _held, "held", namespace=elsewhere)
        await until(it.client, SECRETS, secret, _held, "held", namespace=where)
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: one.phase is Phase.HELD and bool(one.status.blockers), "held at apps")
        # Two deletions that were not sent, because the manager was killed.
        await it.stop_before_delete("hub")
        await it.stop_before_delete("far", namespace=elsewhere)
        await until(it.client, SECRETS, COPY, _copy_held, "held", namespace=elsewhere)
        # While the teardown runs, nothing is let go.
        assert _held(await it.client.get(DEPLOYMENTS, "hub", namespace=where))
        assert _held(await it.client.get(DEPLOYMENTS, "far", namespace=elsewhere))
        if end is Phase.COMPLETE:
            await stack.enter_async_context(running_deployer(it.cluster))
        elif end is Phase.RELEASED:
            await it.delete_policy("prod")  # then no decision of its writers is overruled
            await it.cluster.annotate({FORCE_RELEASE_ANNOTATION: "now", FORCE_RELEASE_BY_ANNOTATION: "jane"})
        else:
            await it.client.patch(CLUSTERS, it.cluster.name, {"metadata": {"finalizers": None}}, namespace=where)
        assert (await it.cluster.ended()).phase is end
        await it.until_restored("hub")
        await it.until_restored("far", namespace=elsewhere)
        await until(it.client, SECRETS, secret, lambda one: not _held(one), "free", namespace=where)
        await until(it.client, SECRETS, COPY, lambda one: not _copy_held(one), "free", namespace=elsewhere)
    if end is not Phase.TARGET_GONE:
        await it.cluster.let_go()


async def test_a_handle_that_a_policy_leaves_is_as_it_was_before_its_deletion(it: PolicyScene) -> None:
    elsewhere = await it.elsewhere()
    await it.handle("hub")
    await it.handle_elsewhere("far", elsewhere)
    await it.policy("prod", sources=_naming(elsewhere))
    async with it.manager():
        await it.until_handle("hub", _held, "held")
        await it.until_handle("far", _held, "held", namespace=elsewhere)
        await it.stop_before_delete("hub")
        await it.stop_before_delete("far", namespace=elsewhere)
        left = [source | {"effort": "Leave"} for source in _naming(elsewhere)]
        await it.client.patch(TEARDOWN_POLICIES, it.called("prod"), {"spec": {"sources": left}})
        await it.until_restored("hub")
        await it.until_restored("far", namespace=elsewhere)


async def test_a_copied_kubeconfig_is_held_until_the_last_handle_that_uses_it_is_gone(it: PolicyScene) -> None:
    elsewhere = await it.elsewhere()
    data = (await it.cluster.secret())["data"]
    await it.copy_kubeconfig(elsewhere, "unused", data)
    await it.copy_kubeconfig(it.cluster.namespace, "prod-kubeconfig", data)
    made = [await it.handle_elsewhere(name, elsewhere) for name in ("one", "two")]
    await it.handle_elsewhere("three", it.cluster.namespace, secret="prod-kubeconfig")  # noqa: S106 - a name
    await it.policy("prod", sources=_naming(elsewhere))

    async def until_copy(name: str, namespace: str, *, held: bool) -> None:
        await until(it.client, SECRETS, name, lambda one: _copy_held(one) is held, f"held: {held}", namespace=namespace)

    async with it.manager():
        await until_copy(COPY, elsewhere, held=True)
        await until_copy("prod-kubeconfig", it.cluster.namespace, held=True)
        for handle in made:
            meta = handle["metadata"]
            await it.until_handle(meta["name"], _held, "held", namespace=elsewhere)
            assert _copy_held(await it.client.get(SECRETS, COPY, namespace=elsewhere))
            await it.client.delete(DEPLOYMENTS, meta["name"], uid=meta["uid"], namespace=elsewhere)
            await it.until_handle(meta["name"], lambda one: one is None, "gone", namespace=elsewhere)
        await until_copy(COPY, elsewhere, held=False)
        assert not _copy_held(await it.client.get(SECRETS, "unused", namespace=elsewhere))
        await it.delete_policy("prod")
        await until_copy("prod-kubeconfig", it.cluster.namespace, held=False)


def _copy_held(found: Object | None) -> bool:
    return Finalizer.COPIED_KUBECONFIG.value in ((found or {}).get("metadata", {}).get("finalizers") or ())


def _terminating(found: Object | None) -> bool:
    return bool(found and found["metadata"].get("deletionTimestamp"))


async def test_a_cluster_whose_status_was_lost_has_its_steps_if_it_has_a_kubeconfig(it: PolicyScene) -> None:
    """A restored Cluster may have an empty status: then it does not tell that it was ever reachable."""
    await deployed(it.cluster, "apps", objects=["apps-0"])
    await it.policy("prod")
    secret, where = f"{it.cluster.name}-kubeconfig", it.cluster.namespace
    found = await it.client.get(CLUSTERS, it.cluster.name, namespace=where, type=Cluster)
    target = msgspec.structs.replace(targets.of_capi(found), ready=False)
    reader = Policies(it.client, PolicyCaches(it.client), clusters=lambda: CLUSTERS)
    async with removal_deps(it.client, HOME) as deps:
        source = CompanionSteps(MemberDeployer(it.cluster), reader, deps.members, deps.inventories)
        assert [step.draft.object.name for step in (await source.steps(target)).steps] == ["apps"]
        await it.client.patch(SECRETS, secret, {"data": {"value": ""}}, namespace=where)
        deps.members.reread(target.ref.uid)
        broken = await source.steps(target)
        assert [notice.type for notice in broken.said] == [ConditionType.UNKNOWN_VALUE]
        # Without a kubeconfig, nothing can have been deployed on it.
        never = await source.steps(msgspec.structs.replace(target, secret="nothing"))  # noqa: S106 - a name
        assert never.said == ()


async def test_a_handle_that_names_its_cluster_by_a_config_map_is_named_by_its_policy(it: PolicyScene) -> None:
    elsewhere = await it.elsewhere()
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": "far", "namespace": elsewhere},
        "spec": {"kubeConfig": {"configMapRef": {"name": "way"}}},
    }
    made = await it.client.create(DEPLOYMENTS, body)
    await it.policy("prod", sources=_naming(elsewhere))
    async with it.manager():
        found = await it.until_policy(
            "prod", lambda one: is_true(one.status.conditions, ConditionType.CLUSTER_UNKNOWN), "naming it"
        )
        said = find(found.status.conditions, ConditionType.CLUSTER_UNKNOWN)
        assert said
        assert said.message.startswith(f"Handle/{elsewhere}/far name their cluster by spec.kubeConfig.configMapRef")
        await it.client.delete(DEPLOYMENTS, "far", uid=made["metadata"]["uid"], namespace=elsewhere)
        await it.until_policy(
            "prod", lambda one: find(one.status.conditions, ConditionType.CLUSTER_UNKNOWN) is None, "no longer"
        )


async def test_a_policy_without_a_selector_selects_nothing(it: PolicyScene) -> None:
    await it.policy("all", clusterSelector={})
    await it.policy("elsewhere", namespaceSelector={"matchLabels": {LABEL: "elsewhere"}})
    async with it.manager():
        for name in ("all", "elsewhere"):
            found = await it.until_policy(name, lambda one: one.status.observed_generation == 1, "evaluated")
            assert found.status.selected == 0


async def test_plan_shows_what_a_policy_would_select_before_it_exists(
    it: PolicyScene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    selector = {"matchLabels": {LABEL: it.cluster.name}}
    spec = {
        "clusterSelector": selector,
        "sources": [{"kind": "Flux", "effort": "Enforce"}],
        "drain": {"loadBalancers": "Enforce"},
        "deadline": "2h",
    }
    document = {
        "apiVersion": "unwind.dev/v1alpha1",
        "kind": "TeardownPolicy",
        "metadata": {"name": "new"},
        "spec": spec,
    }
    file.write_text(yaml.dump(document))
    await plan(policy=file, output="json", kubeconfig=it.cluster.management.kubeconfig)
    seen = json.loads(capsys.readouterr().out)
    [cluster] = seen["clusters"]
    assert (cluster["name"], cluster["gate"], cluster["deadline"]) == (it.cluster.name, "held", "2h")
    assert [(step["name"], step["effort"]) for step in cluster["steps"]] == [("Drain/loadBalancers", "Enforce")]
    await plan(policy=file, kubeconfig=it.cluster.management.kubeconfig)
    assert it.cluster.name in capsys.readouterr().out


async def test_an_enforcing_policy_closes_the_gate_before_a_teardown_exists(it: PolicyScene) -> None:
    reader = Policies(it.client, PolicyCaches(it.client), clusters=lambda: CLUSTERS)
    target = targets.of_capi(
        await it.client.get(CLUSTERS, it.cluster.name, namespace=it.cluster.namespace, type=Cluster)
    )
    source = PolicyGateSource(reader)
    assert await source.read(target) == ([], [])
    await it.policy("tried", effort="Try")
    assert await source.read(target) == ([], [])
    await it.policy("prod")
    [holder], _ = await source.read(target)
    assert holder.name == f"TeardownPolicy/{it.called('prod')}"
