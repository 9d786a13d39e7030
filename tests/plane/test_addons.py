"""Add-ons put on a member, on real API servers."""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from unwind.addons import policy_refs
from unwind.api.annotation_values import VolumePolicy
from unwind.api.meta import ObjectRef
from unwind.api.names import ADOPTED_ANNOTATION, OWNER_LABEL, SVELTOS_HASH_ANNOTATION, SVELTOS_REASON_LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    Resource,
)
from unwind.api.rights import HOME, Right, Setting
from unwind.api.sveltos import PolicyRef
from unwind.api.unwind import TEARDOWNS, EntryState
from unwind.deleters.builtin import BUILTIN
from unwind.deploy.deployment import deploy
from unwind.deploy.dry_run import rehearse
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.deploy.prune import prune
from unwind.deploy.reports import ObjectOutcome
from unwind.install.install import install
from unwind.inventory.inventories import Inventories
from unwind.inventory.writer import SealedError
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.transport import HttpTransport
from unwind.local.waiting import until
from unwind.members.member import Member
from unwind.members.members import Members
from unwind.removal.removal import Removal
from unwind.testing.managers import granting, manager_client
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.reports import DeploymentReport
    from unwind.kube.client import Object
    from unwind.kube.transport import ServerAnswer
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

CREATED, UPDATED, UNCHANGED = ObjectOutcome.CREATED, ObjectOutcome.UPDATED, ObjectOutcome.UNCHANGED
CONFLICT, FAILED = ObjectOutcome.CONFLICT, ObjectOutcome.FAILED
# What a person has to grant for ConfigMaps to be deployed to the management cluster itself.
LOCAL = (Right("", ("configmaps",), ("create", "patch", "delete")),)
POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)


class Site:
    """A member, a namespace of it, and a namespace with sources on the management cluster."""

    def __init__(self, plane: Plane, namespace: str, member: Member, own: Client) -> None:
        """`own`: the manager's client."""
        self.plane = plane
        self.namespace = namespace
        """Of the same name on both."""
        self.member = member
        self.there = member.client
        self.here = plane.management.client
        self.own = own
        self.inventories = Inventories(own, namespace=HOME)

    def owner(self, name: str = "base", **more: Any) -> DeploymentOwner:
        summary = ObjectRef(
            group="config.projectsveltos.io",
            version="v1beta1",
            kind="ClusterSummary",
            namespace=self.namespace,
            name=f"{name}-capi-prod",
            uid=str(uuid.uuid4()),
        )
        profile = ObjectRef(group="config.projectsveltos.io", version="v1beta1", kind="ClusterProfile", name=name)
        return DeploymentOwner(object=summary, profile=profile, **more)

    async def source(self, name: str, *manifests: Object, secret: bool = False) -> PolicyRef:
        text = "\n---\n".join(yaml.safe_dump(obj) for obj in manifests)
        return await self.text(name, {"all.yaml": text}, secret=secret)

    async def text(self, name: str, data: Mapping[str, str], *, secret: bool = False) -> PolicyRef:
        resource = SECRETS if secret else CONFIG_MAPS
        held = {key: base64.b64encode(one.encode()).decode() for key, one in data.items()} if secret else dict(data)
        body = {
            "apiVersion": "v1",
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "data": held,
        }
        await self.here.apply(resource, body, field_manager="test")
        return PolicyRef(kind=resource.kind, name=name)

    async def read(self, *refs: PolicyRef) -> list[ManifestSource]:
        return await policy_refs.read(self.own, refs, namespace=self.namespace)

    async def deploy(self, owner: DeploymentOwner, *refs: PolicyRef, **more: Any) -> DeploymentReport:
        return await deploy(self.member, self.inventories, owner, await self.read(*refs), **more)

    async def prune(self, owner: DeploymentOwner, report: DeploymentReport) -> list[str]:
        done = await prune(self.member, self.inventories, owner, report, deleters=BUILTIN)
        return [f"{item.object.name} {item.outcome}" for item in done]

    async def entries(self, owner: DeploymentOwner) -> dict[str, Any]:
        chunks = await self.inventories.of(owner.uid)
        return {entry.object.name: entry for chunk in chunks for entry in chunk.spec.entries.values()}

    async def remove(self, owner: DeploymentOwner) -> None:
        chunks = await self.inventories.sealed(owner.uid, "t")
        removal = Removal(self.member, self.inventories, chunks, deleters=BUILTIN, teardown="t")
        await removal.run()

    async def get(self, name: str) -> Object:
        return await self.there.get(CONFIG_MAPS, name, namespace=self.namespace)

    async def put(self, name: str, **more: Any) -> Object:
        return await self.there.create(CONFIG_MAPS, self.config_map(name, **more))

    def config_map(self, name: str, *, data: Mapping[str, str] | None = None, **metadata: Any) -> Object:
        metadata = {"name": name, "namespace": self.namespace, **metadata}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data or {"a": "1"})}


def outcomes(report: DeploymentReport) -> dict[str, ObjectOutcome]:
    return {result.object.name: result.outcome for result in report.results}


def message(report: DeploymentReport, name: str) -> str:
    return next(result.message for result in report.results if result.object.name == name)


def target(namespace: str) -> ObjectRef:
    return ObjectRef(
        group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace=namespace, name="prod", uid=namespace
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def equipped(plane: Plane) -> Plane:
    await install(plane.management.client, Setting())
    return plane


@pytest.fixture
def cluster(plane: Plane) -> LocalCluster:
    return plane.members["member-1"]


@pytest_asyncio.fixture(loop_scope="session")
async def site(equipped: Plane, cluster: LocalCluster, namespace: str) -> AsyncIterator[Site]:
    await cluster.create_namespace(namespace)
    uid = await cluster.client.cluster_uid()
    async with (
        Member(target(namespace), cluster.client, system_uid=uid) as member,
        manager_client(equipped.management.client, HOME) as own,
    ):
        yield Site(equipped, namespace, member, own)
    made = await cluster.client.get(NAMESPACES, namespace)
    await cluster.client.delete(NAMESPACES, namespace, uid=made["metadata"]["uid"])


async def test_what_is_deployed_is_marked_and_written_down(site: Site) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"), site.config_map("two"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"one": CREATED, "two": CREATED}
    assert report.complete
    live = await site.get("one")
    labels, annotations = live["metadata"]["labels"], live["metadata"]["annotations"]
    assert labels == {OWNER_LABEL: owner.uid, SVELTOS_REASON_LABEL: "Resources"}
    assert annotations.pop(SVELTOS_HASH_ANNOTATION)
    assert annotations == {
        "projectsveltos.io/reference-kind": "ConfigMap",
        "projectsveltos.io/reference-namespace": site.namespace,
        "projectsveltos.io/reference-name": "add-ons",
        "projectsveltos.io/reference-tier": "100",
        "projectsveltos.io/owner-kind": "ClusterProfile",
        "projectsveltos.io/owner-name": "base",
        "projectsveltos.io/owner-tier": "100",
    }
    entry = (await site.entries(owner))["one"]
    assert (entry.state, entry.object.uid) == (EntryState.CONFIRMED, live["metadata"]["uid"])
    assert (entry.source, entry.order, entry.resource) == (f"ConfigMap {site.namespace}/add-ons", 0, "configmaps")


async def test_what_has_not_changed_is_not_written(site: Site, cluster: LocalCluster) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", *(site.config_map(f"it-{number}") for number in range(6)))
    await site.deploy(owner, ref)
    before = writes(cluster, site.namespace), inventory_writes(site, owner)
    report = await site.deploy(owner, ref)
    assert report.counts == {UNCHANGED: 6}
    assert (writes(cluster, site.namespace), inventory_writes(site, owner)) == before


def writes(cluster: LocalCluster, namespace: str) -> int:
    verbs = ("create", "update", "patch", "delete")
    ours = "unwind"
    return sum(entry.user_agent == ours for entry in cluster.audit.entries(verbs=verbs, namespace=namespace))


def inventory_writes(site: Site, owner: DeploymentOwner) -> int:
    entries = site.plane.management.audit.entries(verbs=("create", "patch", "update"), resource="inventories")
    return sum(owner.uid in entry.object_ref.name for entry in entries)


async def test_what_drops_out_of_a_manifest_drops_out_of_the_object(site: Site) -> None:
    owner = site.owner()
    made = await site.deploy(owner, await site.source("s", site.config_map("it", data={"a": "1", "b": "1"})))
    for data in ({"b": "2", "c": "2"}, {"c": "3"}):
        report = await site.deploy(owner, await site.source("s", site.config_map("it", data=data)))
        assert outcomes(report) == {"it": UPDATED}
        live = await site.get("it")
        assert live["data"] == data
        assert live["metadata"]["uid"] == made.results[0].object.uid


async def test_fields_that_others_set_stay(site: Site) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    await site.there.apply(CONFIG_MAPS, site.config_map("it", data={"theirs": "x"}), field_manager="them", force=False)
    await site.deploy(owner, await site.source("s", site.config_map("it", data={"a": "2"})))
    assert (await site.get("it"))["data"] == {"a": "2", "theirs": "x"}


async def test_what_somebody_changed_is_put_right_when_it_is_asked_for(site: Site) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    await site.there.patch(CONFIG_MAPS, "it", {"data": {"a": "x"}}, namespace=site.namespace, field_manager="them")
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED}
    assert outcomes(await site.deploy(owner, ref, sure=())) == {"it": UPDATED}
    assert (await site.get("it"))["data"] == {"a": "1"}
    assert outcomes(await site.deploy(owner, ref, sure=())) == {"it": UNCHANGED}


async def test_what_somebody_deleted_is_made_anew(site: Site) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    first = (await site.deploy(owner, ref)).results[0].object.uid
    await site.there.delete(CONFIG_MAPS, "it", uid=first, namespace=site.namespace)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": CREATED}
    assert (await site.entries(owner))["it"].object.uid == report.results[0].object.uid != first


async def test_what_drops_out_of_the_sources_goes(site: Site) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("stays"), site.config_map("goes")))
    report = await site.deploy(owner, await site.source("s", site.config_map("stays")))
    assert await site.prune(owner, report) == ["goes Removed"]
    with pytest.raises(NotFoundError):
        await site.get("goes")
    assert list(await site.entries(owner)) == ["stays"]
    assert await site.get("stays")


async def test_nothing_goes_while_a_source_is_broken_or_missing(site: Site) -> None:
    owner = site.owner()
    ref = await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    await site.text("s", {"all.yaml": "a: [", "more.yaml": yaml.safe_dump(site.config_map("more"))})
    report = await site.deploy(owner, ref, PolicyRef(kind="ConfigMap", name="missing"))
    assert outcomes(report) == {"more": CREATED}
    assert not report.complete
    broken, missing = report.faults
    assert f"ConfigMap {site.namespace}/s, key all.yaml, document 1: invalid YAML" in broken
    assert missing == f"ConfigMap {site.namespace}/missing: not found"
    assert await site.prune(owner, report) == []
    assert await site.get("it")


async def test_an_object_of_somebody_else_is_neither_changed_nor_deleted(site: Site) -> None:
    owner = site.owner()
    theirs = await site.put("it", data={"theirs": "x"})
    ref = await site.source("s", site.config_map("it"), site.config_map("ours"))
    for ours in (CREATED, UNCHANGED):
        report = await site.deploy(owner, ref)
        assert outcomes(report) == {"it": CONFLICT, "ours": ours}
        assert message(report, "it") == "it already exists and is not managed by Unwind"
    assert list(await site.entries(owner)) == ["ours"]
    await site.remove(owner)
    assert (await site.get("it"))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    with pytest.raises(NotFoundError):
        await site.get("ours")


@pytest.mark.parametrize("end", ["pruned", "removed"])
async def test_what_is_adopted_is_updated_and_released_in_the_end(site: Site, end: str) -> None:
    owner = site.owner(adopt=True)
    theirs = await site.put("it", data={"theirs": "x"}, labels={"app": "theirs"})
    ref = await site.source("s", site.config_map("it"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": UPDATED}
    live = await site.get("it")
    assert live["data"] == {"theirs": "x", "a": "1"}
    assert live["metadata"]["annotations"][ADOPTED_ANNOTATION] == "true"
    assert (await site.entries(owner))["it"].adopted
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED}
    if end == "pruned":
        report = await site.deploy(owner, await site.text("s", {}))
        assert await site.prune(owner, report) == ["it Left"]
        assert await site.entries(owner) == {}
    else:
        await site.remove(owner)
    live = await site.get("it")
    assert live["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert live["metadata"]["labels"] == {"app": "theirs"}
    assert not live["metadata"].get("annotations")


async def test_the_lower_tier_takes_an_object_over_and_who_lost_it_leaves_it_alone(site: Site) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=50)
    made = await site.deploy(first, ref)
    report = await site.deploy(second, ref)
    assert outcomes(report) == {"it": UPDATED}
    assert message(report, "it") == "taken over from ClusterProfile first"
    live = await site.get("it")
    assert live["metadata"]["uid"] == made.results[0].object.uid
    assert live["metadata"]["labels"][OWNER_LABEL] == second.uid
    # The first has not looked since, and its inventory still says that the object is its own.
    await site.remove(first)
    assert (await site.entries(first))["it"].ledger.message == "taken over by ClusterProfile second"
    assert await site.get("it")
    await site.remove(second)
    with pytest.raises(NotFoundError):
        await site.get("it")


async def test_who_lost_an_object_says_so_and_forgets_it(site: Site) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=50)
    await site.deploy(first, ref)
    await site.deploy(second, ref)
    report = await site.deploy(first, ref)
    assert outcomes(report) == {"it": CONFLICT}
    assert message(report, "it") == "managed by ClusterProfile second (tier 50)"
    assert await site.entries(first) == {}
    assert (await site.entries(second))["it"].state == EntryState.CONFIRMED


class Interrupted(Client):
    """Something happens to an object just before something is applied to it: `times` times."""

    def __init__(self, original: Client, meanwhile: Callable[[], Awaitable[object]], times: int) -> None:
        super().__init__(original.connection)
        self.meanwhile = meanwhile
        self.times = times

    async def apply(self, resource: Resource, body: Object, **more: Any) -> Object:
        if self.times:
            self.times -= 1
            await self.meanwhile()
        return await super().apply(resource, body, **more)


async def test_what_is_taken_over_in_the_moment_of_an_update_is_not_taken_back(site: Site) -> None:
    first, second = site.owner("first"), site.owner("second", tier=50)
    old = await site.source("s", site.config_map("it"))
    await site.deploy(first, old)
    taken = await site.read(old)
    read = await site.read(await site.source("s", site.config_map("it", data={"a": "2"})))

    async def take() -> None:
        await deploy(site.member, site.inventories, second, taken)

    async with member_by(site, Interrupted(site.there, take, 1)) as member:
        report = await deploy(member, site.inventories, first, read)
    assert outcomes(report) == {"it": CONFLICT}
    live = await site.get("it")
    assert (live["metadata"]["labels"][OWNER_LABEL], live["data"]) == (second.uid, {"a": "1"})


async def test_an_object_that_others_keep_changing_is_updated_all_the_same(site: Site) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    read = await site.read(await site.source("s", site.config_map("it", data={"a": "2"})))

    async def change() -> None:
        patch = {"metadata": {"annotations": {"theirs": uuid.uuid4().hex}}}
        await site.there.patch(CONFIG_MAPS, "it", patch, namespace=site.namespace, field_manager="them")

    async with member_by(site, Interrupted(site.there, change, 2)) as member:
        assert outcomes(await deploy(member, site.inventories, owner, read)) == {"it": UPDATED}
    assert (await site.get("it"))["data"] == {"a": "2"}


@pytest.mark.parametrize("tier", [100, 200])
async def test_a_tie_or_a_higher_tier_leaves_an_object_to_its_owner(site: Site, tier: int) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=tier)
    await site.deploy(first, ref)
    before = (await site.get("it"))["metadata"]["resourceVersion"]
    assert outcomes(await site.deploy(second, ref)) == {"it": CONFLICT}
    assert await site.entries(second) == {}
    await site.remove(second)
    assert (await site.get("it"))["metadata"]["resourceVersion"] == before


async def test_what_was_adopted_stays_adopted_with_who_takes_it_over(site: Site) -> None:
    ref = await site.source("s", site.config_map("it"))
    await site.put("it")
    first, second = site.owner("first", adopt=True), site.owner("second", tier=50)
    await site.deploy(first, ref)
    assert outcomes(await site.deploy(second, ref)) == {"it": UPDATED}
    await site.remove(second)
    assert OWNER_LABEL not in ((await site.get("it"))["metadata"].get("labels") or {})


async def test_an_object_that_is_refused_is_named_and_the_others_are_there(site: Site) -> None:
    name = f"deny-{site.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!object.metadata.name.startsWith('bad')", "message": "no bad ones"}],
    }
    policy = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": name}, "spec": spec}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    binding_spec = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    binding = {
        "apiVersion": BINDINGS.api_version,
        "kind": BINDINGS.kind,
        "metadata": {"name": name},
        "spec": binding_spec,
    }
    made = [await site.there.create(POLICIES, policy), await site.there.create(BINDINGS, binding)]
    while await admitted(site, "bad-probe"):
        await asyncio.sleep(0.1)
    owner = site.owner()
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "broken", "namespace": site.namespace},
        "spec": {"ports": [{"port": 700000}]},
    }
    ref = await site.source("s", site.config_map("bad"), site.config_map("good"), service)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"bad": FAILED, "good": CREATED, "broken": FAILED}
    assert "no bad ones" in message(report, "bad")
    assert "700000" in message(report, "broken")
    assert f"ConfigMap {site.namespace}/bad: " in report.trouble
    for resource, one in zip((POLICIES, BINDINGS), made, strict=True):
        await site.there.delete(resource, name, uid=one["metadata"]["uid"])
    while not await admitted(site, "bad-probe"):
        await asyncio.sleep(0.1)
    assert outcomes(await site.deploy(owner, ref)) == {"bad": CREATED, "good": UNCHANGED, "broken": FAILED}
    await site.remove(owner)


async def admitted(site: Site, name: str) -> bool:
    try:
        await site.there.apply(CONFIG_MAPS, site.config_map(name), dry_run=True)
    except ApiError:
        return False
    return True


async def test_nothing_of_a_secret_is_in_what_is_said_of_it(site: Site) -> None:
    secret = "hunter-2-two"  # noqa: S105 - of no use
    broken = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "Not A Name " + secret, "namespace": site.namespace},
        "stringData": {"password": secret},
    }
    config_map = site.config_map("it", labels={"a": f"{secret} is no label"})
    text = {"1.yaml": f"password: {secret}: [", "2.yaml": yaml.safe_dump_all([broken, config_map])}
    report = await site.deploy(site.owner(), await site.text("s", text, secret=True))
    assert [result.outcome for result in report.results] == [FAILED, FAILED]
    told = [*report.faults, *(result.message for result in report.results)]
    assert not [item for item in told if secret in item]
    assert "line 1, column" in report.faults[0]


async def test_a_definition_is_waited_for_before_its_resources(site: Site) -> None:
    kind = f"K{uuid.uuid4().hex[:6]}"
    plural, group = f"{kind.lower()}s", "example.dev"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    definition = {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": versions,
        },
    }
    custom = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "mine", "namespace": site.namespace}}
    owner = site.owner()
    # The resource first: it is the kind that decides on the order.
    ref = await site.source("s", custom, definition)
    report = await site.deploy(owner, ref)
    assert report.counts == {CREATED: 2}, report.trouble
    assert (await site.deploy(owner, ref)).counts == {UNCHANGED: 2}
    await site.remove(owner)
    with pytest.raises(NotFoundError):
        await site.there.get(CUSTOM_RESOURCE_DEFINITIONS, f"{plural}.{group}")


async def test_a_kind_that_nobody_knows_fails_alone(site: Site) -> None:
    strange = {"apiVersion": "nobody.dev/v1", "kind": "Strange", "metadata": {"name": "it"}}
    report = await site.deploy(site.owner(), await site.source("s", strange, site.config_map("ours")))
    assert outcomes(report) == {"ours": CREATED, "it": FAILED}
    assert "the cluster does not serve Strange of nobody.dev/v1" in message(report, "it")
    assert not report.whole


async def test_what_needs_another_object_of_its_source_is_tried_once_more(site: Site) -> None:
    metadata = {"namespace": site.namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner", **metadata}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "first", **metadata},
        "spec": {"serviceAccountName": "runner", "containers": [{"name": "it", "image": "it"}]},
    }
    owner = site.owner()
    report = await site.deploy(owner, await site.source("s", pod, account))
    assert report.counts == {CREATED: 2}, report.trouble
    await site.remove(owner)
    with pytest.raises(NotFoundError):
        await site.there.get(PODS, "first", namespace=site.namespace)


async def test_a_namespace_that_is_needed_is_made_and_goes_again(site: Site) -> None:
    owner, name = site.owner(), f"{site.namespace}-more"
    body = site.config_map("it") | {"metadata": {"name": "it", "namespace": name}}
    ref = await site.source("s", body, site.config_map("here"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": CREATED, "here": CREATED, name: CREATED}
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED, "here": UNCHANGED, name: UNCHANGED}
    report = await site.deploy(owner, await site.source("s", site.config_map("here")))
    assert sorted(await site.prune(owner, report)) == ["it Removed", f"{name} Removed"]
    with pytest.raises(NotFoundError):
        await site.there.get(NAMESPACES, name)
    assert await site.there.get(NAMESPACES, site.namespace)


async def test_a_namespace_with_something_foreign_in_it_stays_until_that_is_gone(site: Site) -> None:
    owner, name = site.owner(), f"{site.namespace}-kept"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await site.deploy(owner, await site.source("s", namespace))
    body = site.config_map("theirs") | {"metadata": {"name": "theirs", "namespace": name}}
    theirs = await site.there.create(CONFIG_MAPS, body)
    report = await site.deploy(owner, await site.text("s", {}))
    [left] = await prune(site.member, site.inventories, owner, report, deleters=BUILTIN)
    assert left.outcome is ObjectOutcome.LEFT
    assert f"ConfigMap {name}/theirs" in left.message
    assert (await site.entries(owner))[name].ledger is None
    await site.there.delete(CONFIG_MAPS, "theirs", uid=theirs["metadata"]["uid"], namespace=name)
    assert await site.prune(owner, report) == [f"{name} Removed"]
    assert await site.entries(owner) == {}


@pytest.mark.parametrize("policy", [VolumePolicy.RETAIN, VolumePolicy.DELETE])
async def test_the_claims_of_a_set_that_drops_out_stay_unless_their_deletion_is_asked_for(
    site: Site, policy: VolumePolicy
) -> None:
    owner = site.owner()
    labels = {"app": "db"}
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": site.namespace},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "db", "image": "db"}]}},
            "volumeClaimTemplates": [claim],
        },
    }
    # As many as a chunk holds: what its removal adds to the inventory has to find room elsewhere.
    others = [site.config_map(f"it-{number}") for number in range(499)]
    await site.deploy(owner, await site.source("s", stateful_set, *others))
    await until(
        site.there,
        PERSISTENT_VOLUME_CLAIMS,
        "data-db-0",
        lambda it: it is not None,
        "made",
        namespace=site.namespace,
    )
    report = await site.deploy(owner, await site.source("s", *others))
    for _ in range(2):  # what is kept is kept the second time as well
        await prune(site.member, site.inventories, owner, report, deleters=BUILTIN, volumes=lambda: policy)
        left = await site.there.list(PERSISTENT_VOLUME_CLAIMS, namespace=site.namespace)
        entries = await site.entries(owner)
        if policy is VolumePolicy.DELETE:
            assert left == []
            assert len(entries) == 499
        else:
            assert [item["metadata"]["name"] for item in left] == ["data-db-0"]
            assert len(entries) == 500
            assert entries["data-db-0"].ledger


async def test_an_object_that_is_being_deleted_is_made_anew_when_it_is_gone(site: Site) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("old"), site.config_map("known"))
    held = ["example.dev/hold"]
    theirs = await site.put("old", finalizers=held)
    await site.there.delete(CONFIG_MAPS, "old", uid=theirs["metadata"]["uid"], namespace=site.namespace)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"old": FAILED, "known": CREATED}
    assert "is being deleted" in message(report, "old")
    await site.there.patch(CONFIG_MAPS, "old", {"metadata": {"finalizers": None}}, namespace=site.namespace)
    await site.there.patch(CONFIG_MAPS, "known", {"metadata": {"finalizers": held}}, namespace=site.namespace)
    uid = (await site.get("known"))["metadata"]["uid"]
    await site.there.delete(CONFIG_MAPS, "known", uid=uid, namespace=site.namespace)
    assert outcomes(await site.deploy(owner, ref)) == {"old": CREATED, "known": FAILED}
    assert (await site.entries(owner))["known"].object.uid == uid
    await site.there.patch(CONFIG_MAPS, "known", {"metadata": {"finalizers": None}}, namespace=site.namespace)
    assert outcomes(await site.deploy(owner, ref)) == {"old": UNCHANGED, "known": CREATED}


async def test_a_rehearsal_touches_nothing(site: Site, cluster: LocalCluster) -> None:
    owner = site.owner()
    await site.put("foreign")
    old = await site.source("s", site.config_map("same"), site.config_map("other"), site.config_map("dropped"))
    await site.deploy(owner, old)
    ref = await site.source(
        "s",
        site.config_map("same"),
        site.config_map("other", data={"a": "2"}),
        site.config_map("new"),
        site.config_map("foreign"),
        site.config_map("Bad Name"),
        site.config_map("far") | {"metadata": {"name": "far", "namespace": f"{site.namespace}-far"}},
    )
    before = await state(site), inventory_writes(site, owner), len(undry(cluster, site.namespace))
    report = await rehearse(site.member, site.inventories, owner, await site.read(ref))
    assert report.dry_run
    assert outcomes(report) == {
        "same": UNCHANGED,
        "other": UPDATED,
        "new": CREATED,
        "foreign": CONFLICT,
        "Bad Name": FAILED,
        "far": CREATED,
        f"{site.namespace}-far": CREATED,
        "dropped": ObjectOutcome.REMOVED,
    }
    assert message(report, "far") == "not checked: its namespace does not exist yet"
    assert (await state(site), inventory_writes(site, owner), len(undry(cluster, site.namespace))) == before
    assert await site.prune(owner, report) == []


async def state(site: Site) -> dict[str, str]:
    found = await site.there.list(CONFIG_MAPS, namespace=site.namespace)
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found}


def undry(cluster: LocalCluster, namespace: str) -> list[str]:
    """What was asked to be written, and not only as a dry run."""
    with cluster.audit.path.open("rb") as log:
        entries = [msgspec.json.decode(line) for line in log if line.endswith(b"\n") and namespace.encode() in line]
    return [
        entry["requestURI"]
        for entry in entries
        if entry["verb"] not in ("get", "list", "watch") and "dryRun=All" not in entry["requestURI"]
    ]


async def test_an_inventory_that_is_sealed_stops_the_deployment_at_once(site: Site, cluster: LocalCluster) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    await site.inventories.sealed(owner.uid, "teardown-1")
    before = writes(cluster, site.namespace)
    with pytest.raises(SealedError, match="it is being removed by Teardown teardown-1"):
        await site.deploy(owner, await site.source("s", site.config_map("more")))
    assert writes(cluster, site.namespace) == before


async def test_what_was_made_while_the_inventory_was_sealed_is_taken_back(site: Site) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))

    class Sealing(Client):
        """Somebody seals the inventory just after an object was made."""

        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            made = await super().create(resource, body, **more)
            await site.inventories.sealed(owner.uid, "t")
            return made

    async with Sealing(site.there.connection) as client:
        member = Member(site.member.ref, client, system_uid=site.member.system_uid)
        read = await site.read(await site.source("s", site.config_map("it"), site.config_map("more")))
        async with member:
            with pytest.raises(SealedError):
                await deploy(member, site.inventories, owner, read)
    with pytest.raises(NotFoundError):
        await site.get("more")
    assert await site.get("it")


async def test_an_inventory_is_closed_afterwards_only_if_it_is_as_it_was_read(site: Site) -> None:
    owner, inventories = site.owner(), site.inventories
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    read = await inventories.at_hand(owner.uid)
    await site.deploy(owner, await site.source("s", site.config_map("it"), site.config_map("more")))
    assert not await inventories.sealed_as_read(owner.uid, read, "t")
    [now] = read = await inventories.at_hand(owner.uid)
    assert not now.spec.sealed_for
    # One more chunk that nobody knew of says so, too.
    await inventories.extend(now, 1)
    assert not await inventories.sealed_as_read(owner.uid, read, "t")
    first, second = await inventories.at_hand(owner.uid)
    assert (first.spec.sealed_for, second.spec.sealed_for) == ("t", "")
    assert await inventories.sealed_as_read(owner.uid, [first, second], "t")
    assert [item.spec.sealed_for for item in await inventories.at_hand(owner.uid)] == ["t", "t"]
    assert (await inventories.by_owner(site.member.ref.uid))[owner.uid] == await inventories.of(owner.uid)


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """Requests of one process, which dies over one of them."""

    def __init__(self, dies_at: int, *, after: bool) -> None:
        self.dies_at = dies_at
        self.after = after
        self.requests = 0
        self.dead = False

    @asynccontextmanager
    async def client(self, original: Client) -> AsyncIterator[Client]:
        mortal = self

        class Transport(HttpTransport):
            async def request(self, method: str, target: str, **more: Any) -> ServerAnswer:
                if mortal.dead:
                    raise Killed
                mortal.requests += 1
                dies = mortal.requests == mortal.dies_at
                if dies and not mortal.after:
                    mortal.dead = True
                    raise Killed
                answer = await super().request(method, target, **more)
                if dies or mortal.dead:
                    mortal.dead = True
                    raise Killed
                return answer

        transport = Transport(original.connection, user_agent="mortal")
        async with Client(original.connection, transport=transport) as client:
            yield client


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_deployment_that_dies_over_any_request_is_finished_by_the_next_and_leaves_nothing(
    site: Site, after: bool
) -> None:
    deaths = 0
    while True:
        deaths += 1
        owner = site.owner(f"mortal-{deaths}", adopt=True)
        names = [f"{kind}-{deaths}-{after}".lower() for kind in ("new", "changed", "adopted")]
        new, changed, adopted = names
        theirs = await site.put(adopted)
        await site.deploy(owner, await site.source("s", site.config_map(changed, data={"a": "0", "b": "0"})))
        read = await site.read(await site.source("s", *(site.config_map(name) for name in names)))
        mortal = Mortal(deaths, after=after)
        async with mortal.client(site.own) as here, mortal.client(site.there) as there:
            member = Member(site.member.ref, there, system_uid=site.member.system_uid)
            async with member:
                try:
                    await deploy(member, Inventories(here, namespace=HOME), owner, read)
                except (Killed, BaseExceptionGroup):
                    assert mortal.dead
        if deaths % 2 == 0:
            report = await deploy(site.member, site.inventories, owner, read)
            assert report.complete
            assert {entry.state for entry in (await site.entries(owner)).values()} == {EntryState.CONFIRMED}
            assert (await site.get(changed))["data"] == {"a": "1"}
        await site.remove(owner)
        for name in (new, changed):
            with pytest.raises(NotFoundError):
                await site.get(name)
        left = await site.get(adopted)
        assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert OWNER_LABEL not in (left["metadata"].get("labels") or {})
        if not mortal.dead:
            break
    assert deaths > 10


@pytest.mark.timeout(300)
@pytest.mark.soak
async def test_five_thousand_objects_cost_a_handful_of_inventory_writes(site: Site) -> None:
    owner = site.owner()
    refs = []
    for part in range(5):
        manifests = [site.config_map(f"it-{part}-{number}") for number in range(1000)]
        refs.append(
            await site.text(
                f"s-{part}",
                {"all.yaml": msgspec.json.encode({"kind": "List", "apiVersion": "v1", "items": manifests}).decode()},
            )
        )
    report = await site.deploy(owner, *refs)
    assert report.counts == {CREATED: 5000}
    assert inventory_writes(site, owner) <= 21
    assert (await site.deploy(owner, *refs)).counts == {UNCHANGED: 5000}
    assert inventory_writes(site, owner) <= 21
    chunks = await site.inventories.of(owner.uid)
    assert [len(chunk.spec.entries) for chunk in chunks] == [500] * 10
    report = await site.deploy(owner, *(await asyncio.gather(*(site.text(f"s-{part}", {}) for part in range(5)))))
    assert len(await site.prune(owner, report)) == 5000
    assert await site.entries(owner) == {}


async def test_what_is_local_goes_to_the_management_cluster(site: Site) -> None:
    owner = site.owner()
    local = msgspec.structs.replace(await site.source("l", site.config_map("local")), deployment_type="Local")
    remote = await site.source("r", site.config_map("remote"))
    read = await site.read(remote, local)
    assert [item.local for item in read] == [False, True]
    granted = granting(site.here, f"local-{site.namespace}", *LOCAL)
    async with granted, manager_client(site.here, HOME) as own, Members(own) as fleet, fleet.management() as home:
        for member in (site.member, home):
            some = [item for item in read if item.local is (member is home)]
            assert (await deploy(member, site.inventories, owner, some)).counts == {CREATED: 1}
        chunks = await site.inventories.of(owner.uid)
        assert [chunk.spec.chunk for chunk in chunks] == [0, 1]
        assert [chunk.spec.member.object for chunk in chunks] == [site.member.ref, home.ref]
        assert (await site.here.get(CONFIG_MAPS, "local", namespace=site.namespace))["metadata"]["labels"]
        assert await site.get("remote")
        # Each is pruned on its own cluster only.
        report = await deploy(home, site.inventories, owner, [])
        gone = await prune(home, site.inventories, owner, report, deleters=BUILTIN)
        assert [item.object.name for item in gone] == ["local"]
    assert list(await site.entries(owner)) == ["remote"]


async def test_a_profile_of_a_namespace_puts_nothing_elsewhere_on_the_management_cluster(site: Site) -> None:
    owner = site.owner()
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "all"}}
    read = await site.read(await site.source("s", role, site.config_map("mine")))
    granted = granting(site.here, f"local-{site.namespace}", *LOCAL)
    async with granted, manager_client(site.here, HOME) as own, Members(own) as fleet, fleet.management() as home:
        report = await deploy(home, site.inventories, owner, read, within=site.namespace)
    assert outcomes(report) == {"mine": CREATED, "all": FAILED}


async def test_a_profile_puts_nothing_that_the_manager_acts_by_on_the_management_cluster(site: Site) -> None:
    owner = site.owner()
    forged = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": {"name": f"forged-{site.namespace}"},
        "spec": {"title": "forged", "target": {"kind": "Cluster", "name": "x"}, "cause": "ClusterDeleted"},
    }
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ours", "namespace": HOME}}
    read = await site.read(await site.source("s", forged, ours, site.config_map("mine")))
    async with Members(site.here) as fleet, fleet.management() as home:
        report = await deploy(home, site.inventories, owner, read)
    assert outcomes(report) == {"mine": CREATED, "ours": FAILED, forged["metadata"]["name"]: FAILED}  # type: ignore[index]
    assert "may not deploy objects of Unwind to the management cluster" in report.trouble


async def test_a_profile_of_a_namespace_reads_nothing_elsewhere(site: Site) -> None:
    ref = PolicyRef(kind="ConfigMap", name="kube-root-ca.crt", namespace="kube-system")
    [source] = await policy_refs.read(site.own, [ref], namespace=site.namespace, tenant=site.namespace)
    assert source.manifests == ()
    assert "cannot reference another namespace" in source.faults[0]


async def test_a_template_is_refused_as_a_whole(site: Site) -> None:
    await site.source("s", site.config_map("it"))
    patch = {"metadata": {"annotations": {"projectsveltos.io/template": "ok"}}}
    await site.here.patch(CONFIG_MAPS, "s", patch, namespace=site.namespace)
    with pytest.raises(policy_refs.UnsupportedError, match=r"annotation projectsveltos\.io/template"):
        await site.read(PolicyRef(kind="ConfigMap", name="s"))


@asynccontextmanager
async def member_by(site: Site, client: Client) -> AsyncIterator[Member]:
    async with client, Member(site.member.ref, client, system_uid=site.member.system_uid) as member:
        yield member


async def test_a_member_that_stops_answering_ends_the_deployment_and_the_next_goes_on(site: Site) -> None:
    owner = site.owner()
    manifests = [site.config_map(f"it-{number}") for number in range(200)]
    read = await site.read(await site.source("s", *manifests))

    class Counting(Client):
        made = 0

        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            found = await super().create(resource, body, **more)
            Counting.made += 1
            if Counting.made == 100:
                proxy.close()
            return found

    async with Proxy(site.there.connection.server) as proxy:
        way = msgspec.structs.replace(site.there.connection, server=proxy.url)
        async with member_by(site, Counting(way)) as member:
            with pytest.raises(UnreachableError):
                await deploy(member, site.inventories, owner, read)
    report = await deploy(site.member, site.inventories, owner, read)
    assert report.complete
    assert report.counts[UNCHANGED] >= 100
    assert {entry.state for entry in (await site.entries(owner)).values()} == {EntryState.CONFIRMED}


async def test_no_answer_for_one_object_is_a_failure_of_that_one(site: Site) -> None:
    class Losing(Client):
        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            made = await super().create(resource, body, **more)
            if made["metadata"]["name"] == "lost":
                raise UnreachableError("nothing came back")
            return made

    owner, ref = site.owner(), await site.source("s", site.config_map("lost"), site.config_map("good"))
    async with member_by(site, Losing(site.there.connection)) as member:
        report = await deploy(member, site.inventories, owner, await site.read(ref))
    # It is tried once more, and found to be there with our mark.
    assert outcomes(report) == {"lost": UNCHANGED, "good": CREATED}
    assert (await site.entries(owner))["lost"].state == EntryState.CONFIRMED


async def test_what_is_in_a_chart_of_the_same_profile_is_left_to_the_chart(site: Site) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    [chunk] = await site.inventories.of(owner.uid)
    [key] = chunk.spec.entries
    await site.inventories.write(chunk, {key: {"source": "Helm web/release"}})
    before = (await site.get("it"))["metadata"]["resourceVersion"]
    report = await site.deploy(owner, await site.source("s", site.config_map("it", data={"b": "2"})))
    assert outcomes(report) == {"it": CONFLICT}
    assert message(report, "it") == "already deployed by Helm web/release of the same profile"
    assert (await site.get("it"))["metadata"]["resourceVersion"] == before
    assert await site.prune(owner, await site.deploy(owner, await site.text("s", {}))) == []


async def test_another_cluster_behind_the_address_gets_nothing(site: Site) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    async with Member(site.member.ref, site.there, system_uid="another") as member:
        with pytest.raises(Exception, match="another cluster answers at the address of Cluster"):
            await deploy(member, site.inventories, owner, await site.read(ref))
