"""What the tests of TeardownPolicies are made of: policies, a manager that follows them, and handles."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from tests.plane.support.example_deployer import ExampleDeployer
from tests.plane.support.objects import teardown_policy
from unwind.addons.caches import AddonCaches
from unwind.addons.step_source import SummarySteps
from unwind.api.capi import CLUSTERS
from unwind.api.flux import DISABLED, RECONCILE
from unwind.api.meta import ObjectMeta, ref_of
from unwind.api.names import Finalizer
from unwind.api.policies import TEARDOWN_POLICIES, SourceKind, TeardownPolicy
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CUSTOM_RESOURCE_DEFINITIONS, SECRETS, Resource
from unwind.api.rights import HOME, Right
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.clock import SYSTEM
from unwind.companions import flux_rules
from unwind.companions.companion import Handle, HandleEntry
from unwind.companions.force_release_review import ReleaseReview
from unwind.companions.handle_caches import HandleCaches, PolicyDeps
from unwind.companions.handle_controller import HandleController
from unwind.companions.handle_kinds import HandleKind, by_cluster_ref, by_kubeconfig
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.kubeconfig_clusters import KubeconfigClusters
from unwind.companions.kubeconfig_copies import KubeconfigCopies
from unwind.companions.policy_controller import PolicyController
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.companions.step_source import CompanionSteps
from unwind.kube.object_watch import until
from unwind.members.cluster_caches import ClusterCaches
from unwind.testing.managers import granting, manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.api.meta import ObjectRef
    from unwind.companions.companion import Companion
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.deletion_gate import GateFault
    from unwind.teardown.step_sources import FollowedSource

LABEL = "policies.example.dev/cluster"
DEPLOYMENTS = Resource("deployer.example.dev", "v1", "handles", "Handle")
"""Handles of the example deployer on the management cluster."""
COPY = "copied"
"""The Secret with a copy of the kubeconfig in another namespace."""


class MemberDeployer(ExampleDeployer):
    """The example deployer, whose handles are on the member: real policies decide about them."""

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        found = await super().handles(target, member, namespaces)
        return [msgspec.structs.replace(handle, on_member=True) for handle in found]


class HubDeployer(ExampleDeployer):
    """The example deployer, whose handles are on the management cluster. `spec.entries`: the ConfigMaps of a handle."""

    def __init__(self, it: TeardownScene) -> None:
        super().__init__(it)
        self._hub = it.client

    def owns(self, ref: ObjectRef) -> bool:
        return (ref.group, ref.kind) == (DEPLOYMENTS.group, DEPLOYMENTS.kind)

    def resource(self, handle: ObjectRef) -> Resource:
        return DEPLOYMENTS

    async def is_on_member(self, handle: ObjectRef, home: Member, member: Member) -> bool:
        return False

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        return [
            Handle(
                ref=ref_of(DEPLOYMENTS, msgspec.convert(item["metadata"], ObjectMeta)),
                source=self.source,
                entries=self._entries(item),
            )
            for namespace in namespaces
            for item in await self._hub.list(DEPLOYMENTS, namespace=namespace)
            if "entries" in item["spec"]
        ]

    def _entries(self, found: Object) -> tuple[HandleEntry, ...]:
        return super()._entries({"data": {"kept": "", **found["spec"]}})


class OpenGate:
    """A gate that is armed everywhere."""

    known = True

    def why_not(self, namespace: str) -> GateFault | None:
        return None

    def subscribe(self, changed: Callable[[], None]) -> None:
        pass


class PolicyScene:
    """A cluster, and policies that select it by a label of its own."""

    def __init__(self, cluster: TeardownScene) -> None:
        self.cluster = cluster
        self.client = cluster.client

    async def label(self, value: str | None) -> None:
        patch = {"metadata": {"labels": {LABEL: value}}}
        await self.client.patch(CLUSTERS, self.cluster.name, patch, namespace=self.cluster.namespace)

    def called(self, name: str) -> str:
        return f"{self.cluster.name}-{name}"

    async def policy(self, name: str, effort: str = "Enforce", **spec: Any) -> None:
        flux = {"kind": "Flux", "effort": effort}
        body = teardown_policy(self.called(name), {LABEL: self.cluster.name}, flux, **spec)
        await self.client.create(TEARDOWN_POLICIES, body)

    async def grant(self, group: str, rule: Object) -> None:
        """Grant a right in the whole cluster to a group whose name is unique."""
        meta = {"name": group}
        role = {"apiVersion": CLUSTER_ROLES.api_version, "kind": "ClusterRole", "metadata": meta, "rules": [rule]}
        await self.client.create(CLUSTER_ROLES, role)
        binding = {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": group},
            "subjects": [{"apiGroup": CLUSTER_ROLES.group, "kind": "Group", "name": group}],
        }
        await self.client.create(CLUSTER_ROLE_BINDINGS, binding)

    async def delete_policy(self, name: str) -> None:
        found = await self.client.get(TEARDOWN_POLICIES, self.called(name))
        await self.client.delete(TEARDOWN_POLICIES, self.called(name), uid=found["metadata"]["uid"])

    async def until_policy(self, name: str, state: Callable[[TeardownPolicy], bool], called: str) -> TeardownPolicy:
        """The policy, as soon as it is so."""
        found = await until(
            self.client,
            TEARDOWN_POLICIES,
            self.called(name),
            lambda it: it is not None and state(msgspec.convert(it, TeardownPolicy)),
            called,
        )
        return msgspec.convert(found, TeardownPolicy)

    async def handle(self, name: str, **metadata: Any) -> Object:
        """A handle on the management cluster."""
        ref = {"namespace": self.cluster.namespace, "name": self.cluster.name}
        body: Object = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {"name": name, "namespace": self.cluster.namespace, **metadata},
            "spec": {"clusterRef": ref},
        }
        return await self.client.create(DEPLOYMENTS, body)

    async def stop_before_delete(self, name: str, *, namespace: str = "") -> None:
        """What the manager writes on a handle right before its DELETE, which is not sent."""
        where = namespace or self.cluster.namespace
        found = await self.client.get(DEPLOYMENTS, name, namespace=where)
        assert Finalizer.HANDLE in found["metadata"]["finalizers"]
        patch = {"metadata": {"annotations": {RECONCILE: DISABLED}}, "spec": {"deletionPolicy": "Delete"}}
        await self.client.revise(DEPLOYMENTS, found, patch)

    async def until_restored(self, name: str, *, namespace: str = "") -> None:
        """Return when a handle is as it was before, and free."""

        def restored(it: Object | None) -> bool:
            meta = (it or {}).get("metadata", {})
            policy = (it or {}).get("spec", {}).get("deletionPolicy")
            held = Finalizer.HANDLE in (meta.get("finalizers") or ())
            return not held and RECONCILE not in (meta.get("annotations") or {}) and policy == "WaitForTermination"

        await self.until_handle(name, restored, "restored", namespace=namespace)

    async def until_handle(
        self, name: str, state: Callable[[Object | None], bool], called: str, *, namespace: str = ""
    ) -> None:
        await until(self.client, DEPLOYMENTS, name, state, called, namespace=namespace or self.cluster.namespace)

    async def elsewhere(self) -> str:
        """Another namespace, with a copy of the kubeconfig."""
        namespace = f"{self.cluster.namespace}-elsewhere"
        await self.cluster.management.create_namespace(namespace)
        await self.copy_kubeconfig(namespace, COPY, (await self.cluster.secret())["data"])
        return namespace

    async def copy_kubeconfig(self, namespace: str, name: str, data: Object) -> None:
        """A Secret with a kubeconfig, as users write it."""
        meta = {"name": name, "namespace": namespace}
        secret = {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "metadata": meta, "data": data}
        await self.client.create(SECRETS, secret)

    async def handle_elsewhere(self, name: str, namespace: str, *, secret: str = COPY, **spec: Any) -> Object:
        """A handle that names its cluster by a copied kubeconfig."""
        body: Object = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"kubeConfig": {"secretRef": {"name": secret}}, **spec},
        }
        return await self.client.create(DEPLOYMENTS, body)

    @asynccontextmanager
    async def manager(
        self, *, helm: Helm | None = None, deployer: ExampleDeployer | None = None, addons: bool = False
    ) -> AsyncIterator[ClusterTeardownController]:
        """The controllers of policies, handles and teardowns, as the installed ServiceAccount; that of teardowns.
        `helm`: releases of plain Helm are steps, too. `deployer`: by default, one whose handles are on the member.
        `addons`: profiles are steps, too."""
        verbs = ("get", "list", "watch", "patch", "delete")
        rights = Right(DEPLOYMENTS.group, (DEPLOYMENTS.plural,), verbs, why="A test.")
        async with granting(self.client, "example-handles", rights), manager_client(self.client, HOME) as own:
            profiles = AddonCaches(own) if addons else None
            caches = profiles or ClusterCaches(own, sveltos_clusters=False)
            kind = HandleKind(
                source=SourceKind.FLUX,
                resource=DEPLOYMENTS,
                cluster_of=lambda one: by_cluster_ref(one) or by_kubeconfig(one),
                before_stay=flux_rules.before_stay,
            )
            running = {SourceKind.FLUX, *([SourceKind.HELM] if helm else []), *([SourceKind.PROFILE] if addons else [])}
            read, shared = policy_deps(own, caches, [kind], running=running), controller_deps(own)
            reader = read.policies
            async with removal_deps(own, HOME) as deps:
                companions: list[Companion] = [deployer or MemberDeployer(self.cluster)]
                if helm:
                    companions.append(HelmCompanion(own, helm, named=reader.names_exactly))
                sources: list[FollowedSource] = [
                    CompanionSteps(one, reader, deps.members, deps.inventories) for one in companions
                ]
                if profiles:
                    sources.append(SummarySteps(own, profiles, policies=reader))
                kubeconfigs = KubeconfigClusters(own, deps.members, clock=SYSTEM)
                copies = KubeconfigCopies(own, kinds=[DEPLOYMENTS])
                teardowns = ClusterTeardownController(
                    shared, caches, deps, sources=sources, may_release=ReleaseReview(own)
                )
                parts = (
                    caches,
                    read.policy_caches,
                    read.handles,
                    teardowns,
                    PolicyController(shared, read, OpenGate()),
                    HandleController(shared, read, kubeconfigs, copies=copies),
                )
                async with running_components(parts):
                    yield teardowns


def policy_deps(
    client: Client, clusters: ClusterCaches, kinds: Iterable[HandleKind], *, running: Collection[SourceKind]
) -> PolicyDeps:
    """What controllers of policies and handles share. `running`: the deployers whose features are installed."""
    caches = PolicyCaches(client)
    return PolicyDeps(
        policy_caches=caches,
        handles=HandleCaches(client, kinds),
        clusters=clusters,
        policies=Policies(client, caches, clusters=lambda: clusters.clusters.resource, running=running),
    )


async def install_handles(it: TeardownScene) -> None:
    """The CRD of handles on the management cluster."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    body: Object = {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": f"{DEPLOYMENTS.plural}.{DEPLOYMENTS.group}"},
        "spec": {
            "group": DEPLOYMENTS.group,
            "names": {"kind": DEPLOYMENTS.kind, "plural": DEPLOYMENTS.plural, "singular": "handle"},
            "scope": "Namespaced",
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    await it.client.apply(CUSTOM_RESOURCE_DEFINITIONS, body, field_manager="test")
    await until(
        it.client,
        CUSTOM_RESOURCE_DEFINITIONS,
        body["metadata"]["name"],
        lambda crd: any(
            item["type"] == "Established" and item["status"] == "True"
            for item in ((crd or {}).get("status") or {}).get("conditions") or ()
        ),
        "established",
    )
