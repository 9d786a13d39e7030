"""Our registration with Cluster API on a real API server: written, kept, made again, and told of where it is bad."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.commands import command
from tests.plane.support.extension_registration import (
    HOME,
    MANAGER,
    OURS,
    create_cluster,
    create_teardown,
    discovered,
    installed,
    say,
    serve,
    serve_only,
    until_config,
)
from tests.plane.support.manager_process import running
from tests.plane.support.objects import absent, until_allowed, until_refused
from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, EXTENSION_CONFIGS, EXTENSION_CONFIGS_V1ALPHA1
from unwind.api.hooks import Hook
from unwind.api.meta import with_condition
from unwind.api.names import (
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    FORCE_RELEASE_GROUPS_ANNOTATION,
    HANDLERS_ANNOTATION,
    INJECT_CA_ANNOTATION,
)
from unwind.api.resources import (
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
)
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS
from unwind.capi.admission_policies import guard_name
from unwind.capi.manifests import cluster_rules
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.events import EVENTS
from unwind.kube.object_watch import until
from unwind.local.cluster import ALL_RIGHTS
from unwind.server import path_segments
from unwind.server.certificate_secret import NAME
from unwind.server.manager_names import REGISTRATION
from unwind.server.path_keys import NAME as PATHS

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

# Long: `make soak` runs it.
pytestmark = pytest.mark.soak


async def test_install_registers_us_for_all_namespaces_and_uninstall_takes_it_back(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    await serve(plane, client, EXTENSION_CONFIGS)
    assert (await command(fresh_member, "install")).counts.keys() == {"created"}
    made = await client.get(EXTENSION_CONFIGS, OURS)
    assert made["spec"]["namespaceSelector"] == {}
    key = base64.b64decode((await client.get(SECRETS, PATHS, namespace=HOME))["data"]["key"])
    prefix = path_segments.prefix(key, path_segments.HOOKS)
    service = {"namespace": HOME, "name": "unwind", "path": prefix, "port": 443}
    assert made["spec"]["clientConfig"] == {"service": service}
    assert (await command(fresh_member, "install")).counts.keys() == {"unchanged"}

    # What install does not write is not its business, and stays.
    await client.patch(EXTENSION_CONFIGS, OURS, {"spec": {"clientConfig": {"caBundle": "Y2E="}}})
    options = ("--url", "https://10.0.0.1:9443", "--namespace-selector", "hold=yes,team=a", "--inject-ca-from-secret")
    assert (await command(fresh_member, "install", *options)).code == 0
    made = await client.get(EXTENSION_CONFIGS, OURS)
    assert made["spec"]["clientConfig"] == {"url": f"https://10.0.0.1:9443{prefix}", "caBundle": "Y2E="}
    assert made["spec"]["namespaceSelector"] == {"matchLabels": {"hold": "yes", "team": "a"}}
    assert made["metadata"]["annotations"] == {INJECT_CA_ANNOTATION: f"{HOME}/{NAME}"}
    sample = "kubernetes.io/metadata.name in (default),!legacy"
    assert (await command(fresh_member, "install", "--namespace-selector", sample)).code == 0
    made = await client.get(EXTENSION_CONFIGS, OURS)
    assert made["spec"]["namespaceSelector"] == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]},
            {"key": "legacy", "operator": "DoesNotExist"},
        ]
    }
    refusal = (await command(fresh_member, "install", "--namespace-selector", "hold in yes")).refusal
    assert "expected '(', found 'yes'" in refusal

    cluster = {"metadata": {"namespace": "default", "name": "c", "uid": "u-1"}}
    teardown = await create_teardown(client, cluster, "Enforce")
    assert "force-release with `unwind release`" in (await command(fresh_member, "uninstall", "--yes")).refusal
    await say(client, teardown, "Complete", "Removed")
    await until_allowed(partial(_delete, client, dry_run=True))
    gone = await command(fresh_member, "uninstall", "--yes", "--delete-crds")
    assert gone.code == 0, gone.err
    first = [f"ConfigMap {HOME}/{REGISTRATION} deleted", f"ExtensionConfig {OURS} deleted"]
    assert gone.err.splitlines()[:2] == first, "no replica registers anything any more, and nothing calls it"
    assert await absent(fresh_member.client, EXTENSION_CONFIGS, OURS)
    assert await absent(fresh_member.client, VALIDATING_ADMISSION_POLICIES, guard_name(HOME))
    assert await absent(fresh_member.client, MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME))
    assert await absent(fresh_member.client, CONFIG_MAPS, REGISTRATION, namespace=HOME)

    # An older Cluster API serves only the older version.
    await serve_only(client, EXTENSION_CONFIGS_V1ALPHA1)
    assert (await command(fresh_member, "install")).counts.keys() == {"created"}
    made = await client.get(EXTENSION_CONFIGS_V1ALPHA1, OURS)
    assert made["spec"]["namespaceSelector"] == {}


async def _delete(client: Client, *, dry_run: bool = False) -> None:
    found = await client.get(EXTENSION_CONFIGS, OURS)
    await client.delete(EXTENSION_CONFIGS, OURS, uid=found["metadata"]["uid"], dry_run=dry_run)


async def _delete_all(client: Client) -> None:
    path = f"{EXTENSION_CONFIGS.path()}?dryRun=All"
    await client._call("deletecollection", EXTENSION_CONFIGS, "DELETE", path)


async def _select(client: Client, selector: Object | None) -> None:
    await client.patch(EXTENSION_CONFIGS, OURS, {"spec": {"namespaceSelector": selector}})


async def with_unwind(plane: Plane, cluster: LocalCluster) -> Client:
    """A client of a cluster with Cluster API's kinds, on which Unwind is installed."""
    await serve(plane, cluster.client)
    assert (await command(cluster, "install")).code == 0
    return cluster.client


async def test_the_registration_stays_while_a_teardown_holds_a_cluster(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = await with_unwind(plane, fresh_member)
    other = {"apiVersion": EXTENSION_CONFIGS.api_version, "kind": EXTENSION_CONFIGS.kind, "metadata": {"name": "other"}}
    await client.create(EXTENSION_CONFIGS, other | {"spec": {"clientConfig": {"url": "https://10.0.0.2"}}})
    cluster = await create_cluster(client, "prod-7")
    teardown = await create_teardown(client, cluster, "Try", "Enforce")

    refused = await until_refused(partial(_delete, client, dry_run=True))
    assert refused.code == 403
    assert f"ExtensionConfig {OURS} blocks Cluster default/prod-7 until its add-ons are removed" in str(refused)
    assert f"Wait until Teardown {teardown} is finished, or release the cluster with the annotation" in str(refused)
    with pytest.raises(ApiError, match="blocks Cluster default/prod-7"):
        await _delete(client)
    with pytest.raises(ApiError, match="blocks Cluster default/prod-7"):
        await _delete_all(client)
    narrower: Object = {"matchLabels": {"team": "a"}}
    for selector in (narrower, None):
        with pytest.raises(ApiError, match="blocks Cluster default/prod-7"):
            await _select(client, selector)
    # What narrows nothing may be written, and so may somebody else's.
    await client.patch(EXTENSION_CONFIGS, OURS, {"metadata": {"labels": {"team": "a"}}})
    await client.patch(EXTENSION_CONFIGS, OURS, {"spec": {"clientConfig": {"caBundle": "Y2E="}}})
    found = await client.get(EXTENSION_CONFIGS, "other")
    await client.delete(EXTENSION_CONFIGS, "other", uid=found["metadata"]["uid"])

    # While it is carried out: not until the step that counts was seen to be removed.
    await say(client, teardown, "Removing", "Removed", "Removing")
    with pytest.raises(ApiError, match="blocks Cluster default/prod-7"):
        await _delete(client, dry_run=True)
    await say(client, teardown, "Removing", "Removing", "Removed")
    await until_allowed(partial(_delete, client, dry_run=True))
    # A step that status names twice is not done.
    for states in (("Removing", "Removed", "Left"), ("Removing", "Removed", "Removed")):
        await say(client, teardown, "Removing", *states[:2])
        await until_allowed(partial(_delete, client, dry_run=True))
        steps = [{"name": "step-1", "state": state} for state in states[1:]]
        await client.patch(TEARDOWNS, teardown, {"status": {"steps": steps}}, subresource="status")
        await until_refused(partial(_delete, client, dry_run=True))
    await say(client, teardown, "Removing", "Removed", "Waiting")
    await until_refused(partial(_delete, client, dry_run=True))
    await say(client, teardown, "Released", "Removed", "GivenUp")
    await until_allowed(partial(_select, client, narrower))

    # A selector that was chosen at installation may stay as it is, and be widened, and not be changed otherwise.
    await say(client, teardown, "Held", "Removed", "Waiting")
    await until_refused(partial(_select, client, {"matchLabels": {"team": "b"}}))
    await client.patch(EXTENSION_CONFIGS, OURS, {"metadata": {"labels": {"team": "b"}}})
    await _select(client, {"matchLabels": None, "matchExpressions": None})
    assert (await client.get(EXTENSION_CONFIGS, OURS))["spec"]["namespaceSelector"] == {}
    await say(client, teardown, "TargetGone", "Removed", "GivenUp")
    await until_allowed(partial(_delete, client))


async def test_a_manager_registers_itself_when_cluster_api_comes_and_again_when_it_vanished(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    told = await command(fresh_member, "install")
    assert told.counts["left out"] == 1
    kubeconfig = fresh_member.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    async with running(fresh_member, HOME, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("https", "metrics")
        await serve(plane, client)
        made = await until_config(client, _trusting, "trusting us")
        bundle = (await client.get(SECRETS, NAME, namespace=HOME))["data"]["ca.crt"]
        assert made["spec"]["clientConfig"]["caBundle"] == bundle
        assert made["spec"]["namespaceSelector"] == {}
        assert (await command(fresh_member, "install")).counts.keys() == {"unchanged"}, "as install would have made it"

        # Cluster API is made to look, as long as it does not know what we answer to.
        await until_config(client, lambda it: _touched(it) != "", "to be discovered")
        await discovered(client, Hook.BEFORE_CLUSTER_CREATE)
        before = _touched(await client.get(EXTENSION_CONFIGS, OURS))
        await discovered(client)

        await _delete(client)
        again = await until_config(client, lambda it: it["metadata"]["uid"] != made["metadata"]["uid"], "made again")
        assert again["spec"]["namespaceSelector"] == {}
        again = await until_config(client, lambda it: _touched(it) == before, "to be discovered")
        assert [item for item in manager.logged if "was missing, recreated" in item["event"]]
        assert await manager.stop() == 0

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []


def _trusting(config: Object) -> bool:
    return "caBundle" in config["spec"]["clientConfig"]


def _touched(config: Object) -> str:
    return str((config["metadata"].get("annotations") or {}).get(HANDLERS_ANNOTATION, ""))


async def test_profiles_and_teardowns_say_why_their_clusters_are_not_held(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = await with_unwind(plane, fresh_member)
    cluster = await create_cluster(client, "prod-7", labels={"env": "prod"})
    teardown = await create_teardown(client, cluster, "Enforce")
    for name, behaviour in (("strict", "EnforceRemovePolicies"), ("loose", "RemovePolicies")):
        spec = {"clusterSelector": {"matchLabels": {"env": "prod"}}, "clusterDeletionBehavior": behaviour}
        metadata = {"name": name}
        body = {"apiVersion": CLUSTER_PROFILES.api_version, "kind": "ClusterProfile", "metadata": metadata}
        await client.create(CLUSTER_PROFILES, body | {"spec": spec})

    async def until_said(reason: str, words: str) -> None:
        for resource, name in ((CLUSTER_PROFILES, "strict"), (TEARDOWNS, teardown)):

            def says(it: Object | None) -> bool:
                found = profiles.condition(it or {}, "GateNotArmed")
                return found.get("reason", "") == reason and words in found.get("message", "")

            await until(client, resource, name, says, f"saying {words!r}")

    async def until_armed() -> None:
        for resource, name in ((CLUSTER_PROFILES, "strict"), (TEARDOWNS, teardown)):
            await until(client, resource, name, lambda it: not profiles.condition(it or {}, "GateNotArmed"), "armed")

    kubeconfig = fresh_member.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    async with running(fresh_member, HOME, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("metrics")
        await until_said("NotDiscovered", "it has no Discovered condition yet")
        await discovered(client, word="False")
        await until_said("NotDiscovered", "Error in discovery: nobody is there")
        # Whoever carries the teardown out says other things of it, and takes back what it does not say itself.
        await _carry_out(client, teardown)
        await until_said("NotDiscovered", "Error in discovery: nobody is there")
        await discovered(client)
        await until_armed()
        record = await client.get(TEARDOWNS, teardown)
        assert [item["type"] for item in record["status"]["conditions"]] == ["Planned"]
        loose = await client.get(CLUSTER_PROFILES, "loose")
        assert profiles.condition(loose, "Accepted")["status"] == "True"
        assert not profiles.condition(loose, "GateNotArmed"), "nobody waits for it"

        await discovered(client, failure_policy="Ignore")
        await until_said("FailuresIgnored", "Cluster API deletes a Cluster if Unwind does not answer")
        await discovered(client, Hook.AFTER_CONTROL_PLANE_INITIALIZED)
        await until_said("HandlerMissing", "lists no Unwind handler for BeforeClusterDelete")
        await discovered(client)
        await until_armed()

        # It can be narrowed while nothing is held.
        await say(client, teardown, "Released", "GivenUp")
        await until_allowed(partial(_select, client, {"matchLabels": {"hold": "yes"}}))
        await say(client, teardown, "Held", "Waiting")
        await until_said("NamespaceNotSelected", "does not select the namespace")
        await client.patch(NAMESPACES, "default", {"metadata": {"labels": {"hold": "yes"}}})
        await until_armed()
        await client.patch(NAMESPACES, "default", {"metadata": {"labels": {"hold": None}}})
        await until_said("NamespaceNotSelected", "Cluster API does not wait for the removal")
        await _until_reported(client, "ClusterProfile", "strict")
        await _until_reported(client, "Teardown", teardown)
        _, metrics = await manager.probe("/metrics")
        assert "unwind_gate_unarmed_clusters 0.0" in metrics, "nothing is deployed on it, nothing would be left"
        ready = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await client.patch(CLUSTERS, "prod-7", ready, namespace="default", subresource="status")
        await manager.until_metric("unwind_gate_unarmed_clusters 1.0")

        def warns(it: Object | None) -> bool:
            return profiles.condition(it or {}, "GateNotArmed").get("reason") == "NamespaceNotSelected"

        await until(client, CLUSTER_SUMMARIES, "strict-capi-prod-7", warns, "warning", namespace="default")
        await client.patch(NAMESPACES, "default", {"metadata": {"labels": {"hold": "yes"}}})
        await until(client, CLUSTER_SUMMARIES, "strict-capi-prod-7", _is_armed, "armed", namespace="default")
        assert await manager.stop() == 0

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []


def _is_armed(it: Object | None) -> bool:
    return it is not None and not profiles.condition(it, "GateNotArmed")


async def _carry_out(client: Client, teardown: str) -> None:
    """Write the status of a teardown as the controller does that carries it out."""
    said = with_condition((), type="Planned", status=True, reason="Planned", now=datetime.now(UTC))
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": {"name": teardown},
        "status": {"phase": "Removing", "conditions": msgspec.to_builtins(said)},
    }
    await client.apply(TEARDOWNS, body, subresource="status")


async def _until_reported(client: Client, kind: str, name: str) -> None:
    async def reported() -> list[Object]:
        return [
            event
            for event in await client.list(EVENTS, namespace="default")
            if (event["regarding"]["kind"], event["regarding"]["name"], event["reason"]) == (kind, name, "GateNotArmed")
        ]

    [event, *_] = await eventually(reported, f"an Event on {kind} {name}", within=30)
    assert "Cluster API does not wait for the removal" in event["note"]


async def test_who_lets_a_cluster_go_and_who_deletes_it_is_noted_on_it(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    kubeconfig = await installed(plane, fresh_member)
    async with (
        running(fresh_member, HOME, kubeconfig=kubeconfig) as manager,
        Client(fresh_member.connection("alice", groups=ALL_RIGHTS)) as alice,
        Client(fresh_member.connection("bob", groups=ALL_RIGHTS)) as bob,
    ):
        await manager.until_listening("https")
        address = manager.addresses["https"]
        assert (await command(fresh_member, "install", "--url", f"https://{address}")).code == 0
        # Cluster API would hold it by a finalizer of its own.
        cluster = await create_cluster(client, "prod-7", finalizers=["example.dev/hold"])
        await _until_noted(alice, cluster)

        # Who says that it was another is not believed, and neither is who changes only that.
        await _annotate(bob, CLUSTERS, {FORCE_RELEASE_ANNOTATION: "really", FORCE_RELEASE_BY_ANNOTATION: "alice"})
        assert (await _annotations(client))[FORCE_RELEASE_BY_ANNOTATION] == "bob"
        await _annotate(bob, CLUSTERS, {FORCE_RELEASE_BY_ANNOTATION: "alice"})
        assert (await _annotations(client))[FORCE_RELEASE_BY_ANNOTATION] == "bob"
        groups = (await _annotations(client))[FORCE_RELEASE_GROUPS_ANNOTATION]
        assert "system:authenticated" in groups.split("\n")
        await _annotate(bob, CLUSTERS, {FORCE_RELEASE_GROUPS_ANNOTATION: "system:masters"})
        assert (await _annotations(client))[FORCE_RELEASE_GROUPS_ANNOTATION] == groups
        await _annotate(bob, CLUSTERS, {FORCE_RELEASE_BY_ANNOTATION: None})
        assert (await _annotations(client))[FORCE_RELEASE_BY_ANNOTATION] == "bob"
        # In whichever version they write it, and whatever else they write.
        await _annotate(alice, CLUSTERS_V1BETA1, {FORCE_RELEASE_ANNOTATION: ""})
        assert (await _annotations(client))[FORCE_RELEASE_BY_ANNOTATION] == "alice"
        await _annotate(bob, CLUSTERS, {"team": "a"})
        assert (await _annotations(client))[FORCE_RELEASE_BY_ANNOTATION] == "alice"
        await _annotate(bob, CLUSTERS, {FORCE_RELEASE_ANNOTATION: None})
        assert not {FORCE_RELEASE_BY_ANNOTATION, FORCE_RELEASE_GROUPS_ANNOTATION} & set(await _annotations(client))

        uid = cluster["metadata"]["uid"]
        delete = partial(client.delete, CLUSTERS, "prod-7", namespace="default", uid=uid)
        await delete(dry_run=True)
        assert DELETION_REQUESTED_BY_ANNOTATION not in await _annotations(client)
        await bob.delete(CLUSTERS, "prod-7", namespace="default", uid=uid)
        found = await client.get(CLUSTERS, "prod-7", namespace="default")
        assert found["metadata"]["deletionTimestamp"]
        assert found["metadata"]["annotations"][DELETION_REQUESTED_BY_ANNOTATION] == "bob"
        # It is being deleted already: who says so again did not do it.
        await alice.delete(CLUSTERS, "prod-7", namespace="default", uid=uid)
        assert (await _annotations(client))[DELETION_REQUESTED_BY_ANNOTATION] == "bob"
        record = await until(client, TEARDOWNS, uid, lambda it: it is not None, "written")
        assert record
        assert record["spec"]["requestedBy"] == "bob"

        # One without a finalizer goes at once, also with others, and whoever insists on a version is not disturbed.
        for name in ("one", "two"):
            await create_cluster(client, name)
        one = await client.get(CLUSTERS, "one", namespace="default")
        meta = one["metadata"]
        await bob.delete(CLUSTERS, "one", namespace="default", uid=meta["uid"], version=meta["resourceVersion"])
        await bob._call("deletecollection", CLUSTERS, "DELETE", CLUSTERS.path(namespace="default"))
        assert [it["metadata"]["name"] for it in await client.list(CLUSTERS)] == ["prod-7"]
        assert await manager.stop() == 0

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []
    # Nobody is there to note it: everything goes its way.
    await _annotate(client, CLUSTERS, {FORCE_RELEASE_ANNOTATION: "gone"})
    assert FORCE_RELEASE_BY_ANNOTATION not in await _annotations(client)


async def _annotate(client: Client, resource: object, annotations: dict[str, str | None]) -> None:
    patch = {"metadata": {"annotations": annotations}}
    await client.patch(resource, "prod-7", patch, namespace="default")  # type: ignore[arg-type]


async def _annotations(client: Client) -> dict[str, str]:
    found = await client.get(CLUSTERS, "prod-7", namespace="default")
    return found["metadata"].get("annotations") or {}


async def _until_noted(client: Client, cluster: Object) -> None:
    """It takes the API server a moment to know whom to ask, and by which authority."""

    async def noted() -> bool:
        await _annotate(client, CLUSTERS, {FORCE_RELEASE_ANNOTATION: None})
        await _annotate(client, CLUSTERS, {FORCE_RELEASE_ANNOTATION: "try"})
        return (await _annotations(client)).get(FORCE_RELEASE_BY_ANNOTATION) == "alice"

    await eventually(noted, "a call of the webhook")
