"""The wiring of the manager: which components run, what they share, and which routes answer. Read it top to bottom.

Each function wires one package. Components start with the role that they are listed under: `controllers` write,
`serving` answers the API server and Cluster API.
"""

from __future__ import annotations

import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.addons import builtin_hook_rules, profile_admission
from unwind.addons.caches import AddonCaches
from unwind.addons.chart_availability import ChartAvailability
from unwind.addons.configuration_controller import ConfigurationController
from unwind.addons.deletion_warning import deletion_warning
from unwind.addons.gate_conditions import Gated
from unwind.addons.manifests import profile_rules
from unwind.addons.moved_cluster_adoption import MovedAddons, OwnerRecordController
from unwind.addons.profile_controller import ProfileController
from unwind.addons.step_source import SummarySteps
from unwind.addons.summary_controller import SummaryController
from unwind.addons.summary_gate_source import SummaryGateSource
from unwind.api import features
from unwind.api.capi import CLUSTERS
from unwind.api.features import COMPANIONS, Feature
from unwind.api.karmada import CLUSTERS as MEMBER_CLUSTERS
from unwind.api.names import MANAGER_USER_AGENT
from unwind.api.policies import SourceKind
from unwind.api.resources import (
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import Setting
from unwind.capi import cluster_webhook, hook_protocol, hook_registry
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.capi.extension_config_controller import ExtensionConfigController
from unwind.capi.gate_reader import GateReader
from unwind.capi.hook_handlers import GateMetrics, HookHandlers
from unwind.capi.hook_registry import HookRegistry
from unwind.capi.machine_caches import MachineCaches
from unwind.capi.machine_gate_controller import MachineGateController
from unwind.capi.manifests import cluster_rules
from unwind.capi.ok_to_delete_controller import OkToDeleteController
from unwind.capi.unarmed_gate_controller import UnarmedClusterController
from unwind.companions.flux import FluxCompanion
from unwind.companions.force_release_review import ReleaseReview
from unwind.companions.handle_caches import HandleCaches, PolicyDeps
from unwind.companions.handle_controller import HandleController
from unwind.companions.handle_kinds import HANDLES
from unwind.companions.handle_requests import HandleRequests
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.kubeconfig_clusters import KubeconfigClusters
from unwind.companions.kubeconfig_copies import KubeconfigCopies
from unwind.companions.policy_controller import PolicyController
from unwind.companions.policy_gate_source import PolicyGates, PolicyGateSource
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.companions.step_source import CompanionSteps
from unwind.components import PROTECTION_GATE, Components, Role
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.registry import DeleterRegistry, installed
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.drain.requests import DrainRequests
from unwind.drain.step_source import DrainSteps
from unwind.external.controller import DeletionMetrics, ExternalController
from unwind.external.member_ends import MemberEnds
from unwind.helm.program import Helm
from unwind.install.manifests import policies, webhooks
from unwind.inventory.inventories import Inventories
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.cluster_controller import ClusterController
from unwind.karmada.cluster_pairs import PairController
from unwind.karmada.deletion_warning import unjoin_warning
from unwind.karmada.member_gate_source import MemberGateSource
from unwind.karmada.member_step_source import MemberSteps
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.karmada.work_controller import WorkController
from unwind.members.cluster_caches import ClusterCaches
from unwind.members.members import Members
from unwind.notifications.addresses import AddressRules
from unwind.notifications.controller import NotificationCaches, NotificationController, NotificationMetrics
from unwind.notifications.sink_request import Delivery, own_addresses, trust
from unwind.preview import removal_forecast
from unwind.protection.contents_reader import ProtectionLookup
from unwind.protection.controller import ProtectionController
from unwind.protection.manifests import protection_rules
from unwind.protection.namespace_cache import ProtectionCaches
from unwind.protection.webhook import DenialReporter, ProtectionWebhook, RestoreReporter
from unwind.server.registration import RegistrationDeps
from unwind.server.routes import CABundleTarget
from unwind.server.webhook_controller import WebhookController
from unwind.teardown.archive_controller import ArchiveController
from unwind.teardown.archive_directory import ArchiveDirectory
from unwind.teardown.deletion_gate import GateSources
from unwind.teardown.recorded_gate_source import RecordedGateSource
from unwind.teardown.request_controller import RequestController
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.teardown_metrics import TeardownMetrics
from unwind.teardown.withdrawal_records import WithdrawalRecords

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.capi.cluster_webhook import DeletionWarning
    from unwind.companions.companion import Companion
    from unwind.components import Component
    from unwind.deleters.registry import Plugin
    from unwind.hooks import Rule
    from unwind.kube.client import Object
    from unwind.manager.context import ManagerContext
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_sources import FollowedSource

log = logs.get(__name__)


class Shared:
    """What the controllers of clusters share: one of each for the process."""

    def __init__(self, context: ManagerContext) -> None:
        client, namespace, program = context.client, context.options.namespace, shutil.which("helm")
        self._context = context
        self.caches = _caches(context)
        """Clusters, Teardowns and Secrets; with the feature `addons`, also profiles and ClusterSummaries."""
        self.caches.observe(context.metrics)
        self.keys = RecordKeys(client, namespace=namespace)
        """The keys by which the manager recognizes its own Teardowns."""
        self.helm = Helm(Path(program), replica=context.shards.identity) if program else None
        """Deploys and uninstalls charts. Without the program, a release is blocked."""
        self.members = Members(client, troubled=_log_member_failed)
        """The connections to member clusters."""
        self.inventories = Inventories(client, namespace=namespace)
        self.archive = (
            self._archive() if context.options.archive and Role.CONTROLLERS in context.options.roles else None
        )
        """Writes finished Teardowns to a directory, if there is one."""
        self.plugins = tuple(installed())
        self.external_ends = MemberEnds(client, namespace=namespace)
        """Connections to external systems, for objects on members."""
        self.deployment = RemovalDeps(
            members=self.members,
            inventories=self.inventories,
            deleters=BUILTIN,
            plugins=self.plugins,
            external_ends=self.external_ends,
            archive=self.archive,
        )
        """For add-ons and Works."""
        self.teardown = msgspec.structs.replace(
            self.deployment, best_effort=context.options.best_effort, clock=context.clock
        )
        """The same for teardowns. Their deadlines count from times that the API server wrote."""
        self.withdrawals = WithdrawalRecords(
            context.server_time, self.caches, self.teardown, keys=self.keys, keep=context.options.keep_teardowns
        )
        """Writes the Teardowns of withdrawals, for add-ons and Works."""
        TeardownMetrics(self.caches.teardowns, context.registry, owns=context.shards.owns, clock=context.clock)
        self.gate_source = GateSources(
            SummaryGateSource(client, self.caches, self.inventories)
            if isinstance(self.caches, AddonCaches)
            else RecordedGateSource(self.inventories),
            *([MemberGateSource(client)] if Feature.KARMADA in context.features else []),
            *([PolicyGateSource(self.policies)] if context.features & features.POLICIES else []),
        )

    def _archive(self) -> ArchiveController:
        context = self._context
        assert context.options.archive  # noqa: S101 - for the type checker
        return ArchiveController(
            context.server_time,
            ArchiveDirectory(context.options.archive),
            self.caches,
            self.inventories,
            keys=self.keys,
            registry=context.registry,
        )

    @cached_property
    def copies(self) -> KubeconfigCopies:
        """Holds the copied kubeconfigs that handles use."""
        return KubeconfigCopies(self._context.client)

    @cached_property
    def companions(self) -> dict[SourceKind, Companion]:
        """The deployers whose features are installed."""
        context = self._context
        found: dict[Feature, Companion] = {
            Feature.CAAPH: HelmReleaseProxies(context.client, self.helm),
            Feature.FLUX: FluxCompanion(
                context.client, removes=self._removes_suspended, helm=self.helm, copies=self.copies
            ),
            Feature.HELM: HelmCompanion(context.client, self.helm, named=self._names_exactly),
        }
        return {companion.source: companion for feature, companion in found.items() if feature in context.features}

    @cached_property
    def policies(self) -> Policies:
        """The TeardownPolicies of clusters. Only some features have them."""
        caches = self.caches
        return Policies(
            self._context.client,
            self.policy_caches,
            clusters=lambda: caches.clusters.resource,
            running=self._sources(),
            drains=Feature.DRAIN in self._context.features,
        )

    def _sources(self) -> frozenset[SourceKind]:
        """Where steps come from: the deployers, profiles and Works whose features are installed."""
        others = {Feature.ADDONS: SourceKind.PROFILE, Feature.KARMADA: SourceKind.WORK}
        return frozenset(
            {*self.companions, *(kind for feature, kind in others.items() if feature in self._context.features)}
        )

    async def _names_exactly(self, target: ClusterTarget, release: ObjectRef) -> bool:
        return await self.policies.names_exactly(target, release)

    async def _removes_suspended(self, target: ClusterTarget, handle: ObjectRef, on_member: bool) -> bool:
        return await self.policies.removes_suspended(target, handle, on_member=on_member)

    @cached_property
    def policy_caches(self) -> PolicyCaches:
        """TeardownPolicies. Only some features have them."""
        caches = PolicyCaches(self._context.client, informers=self._context.informers)
        caches.observe(self._context.metrics)
        return caches

    @cached_property
    def registration(self) -> ExtensionConfigController:
        """The registration with Cluster API, and whether the gate is armed. Only the feature `capi` has one."""
        context = self._context
        return ExtensionConfigController(
            _registration(context),
            self.caches,
            hooks=hook_protocol.switched_on(context.options.feature_gates),
            informers=context.informers,
        )

    @cached_property
    def gates(self) -> PolicyGates | None:
        """The gates that policies choose. Only some features have them."""
        if not self._context.features & features.POLICIES:
            return None
        return PolicyGates(self.policies, self.policy_caches)

    @cached_property
    def machines(self) -> MachineCaches | None:
        """The Machines of Clusters. Only the feature `gates` has them."""
        context = self._context
        return MachineCaches(context.client, informers=context.informers) if Feature.GATES in context.features else None

    @cached_property
    def karmada_caches(self) -> KarmadaCaches:
        """Karmada's Clusters and Works. Only the feature `karmada` has them."""
        context = self._context
        caches = KarmadaCaches(context.client, informers=context.informers)
        caches.observe(context.metrics)
        return caches


def _caches(context: ManagerContext) -> ClusterCaches:
    """Watches what the features need, and nothing that they have no rights for."""
    client, informers, features = context.client, context.informers, context.features
    if Feature.ADDONS in features:
        return AddonCaches(client, informers=informers)
    # The ConfigMap of the registration, and the Secrets of the manager itself; credentials of members are anywhere.
    homes = {kind.kind: context.options.namespace for kind in (CONFIG_MAPS, SECRETS)}
    if Feature.KARMADA in features:
        del homes[SECRETS.kind]
    return ClusterCaches(
        client, informers=informers, clusters=Feature.CAPI in features, sveltos_clusters=False, homes=homes
    )


def components(context: ManagerContext) -> list[Components]:
    """Everything that runs in the manager, by package."""
    shared = Shared(context)
    wired = {
        Feature.EXTERNAL: external,
        Feature.ADDONS: addons,
        Feature.KARMADA: karmada,
        Feature.CAPI: capi,
    }
    return [
        Components(shared=(shared.members, shared.external_ends)),
        *(wire(context, shared) for feature, wire in wired.items() if feature in context.features),
        *([companions(context, shared)] if context.features & features.POLICIES else []),
        teardowns(context, shared),
        attribution(context, shared),
        protection(context),
        webhook_registrations(context),
    ]


def external(context: ManagerContext, shared: Shared) -> Components:
    """Objects that stand for something outside the cluster."""
    controller = ExternalController(
        context.controllers,
        DeleterRegistry(BUILTIN, plugins=shared.plugins, broken=_log_broken),
        namespace=context.options.namespace,
        measures=DeletionMetrics(context.registry),
        policy=context.options.delete_policy,
        informers=context.informers,
    )
    return Components(controllers=(controller,))


def addons(context: ManagerContext, shared: Shared) -> Components:
    """Sveltos profiles: matching, deployment, withdrawal, reports, and the admission of profiles."""
    client, caches, controllers = context.client, shared.caches, context.controllers
    assert isinstance(caches, AddonCaches)  # noqa: S101 - for the type checker
    return Components(
        controllers=(
            ProfileController(
                controllers,
                caches,
                members=shared.deployment.members,
                gated=Gated(controllers.recorder, shared.registration, shared.gates),
            ),
            SummaryController(
                controllers,
                caches,
                shared.deployment,
                records=shared.withdrawals,
                helm=shared.helm,
                keys=shared.keys,
            ),
            ConfigurationController(controllers, caches, shared.inventories),
            OwnerRecordController(controllers, caches),
        ),
        routes=(profile_admission.route(partial(profile_admission.existing_profiles, client)),),
        ca_bundle_targets=(
            CABundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(context.options.namespace)),
        ),
    )


def teardowns(context: ManagerContext, shared: Shared) -> Components:
    """Requested deletions and the records of withdrawals."""
    client, caches = context.client, shared.caches
    refusals = partial(removal_forecast.refusals, home=context.options.namespace)
    drains = DrainRequests(
        client,
        shared.teardown,
        shared.policies if Feature.DRAIN in context.features else None,
        clusters=lambda: caches.clusters.resource,
    )
    handles = HandleRequests(client, shared.teardown, features=context.features, refusals=refusals)
    return Components(
        controllers=(
            caches,
            shared.withdrawals,
            *([shared.archive] if shared.archive else []),
            RequestController(
                context.server_time,
                caches,
                shared.teardown,
                refusals=refusals,
                others=lambda teardown: drains(teardown) or handles(teardown),
                keep=context.options.keep_teardowns,
                keys=shared.keys,
            ),
        ),
        serving=(caches,),
    )


def karmada(context: ManagerContext, shared: Shared) -> Components:
    """Karmada's member Clusters and Works."""
    controllers, caches = context.controllers, shared.karmada_caches
    clusters, secrets = shared.caches.clusters, shared.caches.sources[SECRETS.kind]
    return Components(
        controllers=(
            caches,
            ClusterController(controllers, caches, secrets, shared.members),
            *(
                [PairController(controllers, caches, clusters, secrets, shared.members)]
                if Feature.CAPI in context.features
                else []
            ),
            WorkController(
                controllers, caches, secrets, shared.deployment, records=shared.withdrawals, keys=shared.keys
            ),
            UnjoinController(
                context.server_time,
                caches,
                shared.caches.teardowns,
                secrets,
                shared.teardown,
                keep=context.options.keep_teardowns,
                keys=shared.keys,
            ),
        ),
    )


def capi(context: ManagerContext, shared: Shared) -> Components:
    """Cluster API's Clusters: teardowns, and the lifecycle hooks with registration, the gate, and the rules at each
    hook. A further step source is added here."""
    client, caches, recorder = context.client, shared.caches, context.recorder
    sources: list[FollowedSource] = []
    policies = shared.policies if context.features & COMPANIONS else None
    rules: tuple[Rule, ...] = ()
    # A separate Helm queue: a hook cannot wait until all running deployments are finished.
    charts = ChartAvailability(Helm(shared.helm.program) if shared.helm else None)
    if isinstance(caches, AddonCaches):
        releases, moved = HelmReleases(shared.helm), MovedAddons(shared.teardown)
        sources.append(SummarySteps(client, caches, releases=releases, moved=moved, policies=policies))
        rules = builtin_hook_rules.builtin(caches, charts=charts, deps=shared.deployment)
    if Feature.KARMADA in context.features:
        sources.append(MemberSteps(client, shared.karmada_caches, shared.inventories, policies=policies))
    sources += [
        CompanionSteps(companion, shared.policies, shared.members, shared.inventories)
        for companion in shared.companions.values()
    ]
    if Feature.DRAIN in context.features:
        # The last one: the Inventories of all other steps tell which of them clean up for the drain.
        sources.append(DrainSteps(shared.policies, shared.members, shared.inventories, shared.teardown.clock))
    registry = HookRegistry(rules, plugins=hook_registry.installed())
    handlers = HookHandlers(
        client,
        caches,
        shared.gate_source,
        namespace=context.options.namespace,
        registry=registry,
        hooks=hook_protocol.switched_on(context.options.feature_gates),
        keys=shared.keys,
        recorder=recorder,
        metrics=GateMetrics(context.registry),
    )
    return Components(
        controllers=(
            ClusterTeardownController(
                context.server_time,
                caches,
                shared.teardown,
                sources=sources,
                keep=context.options.keep_teardowns,
                keys=shared.keys,
                with_credentials=bool(context.features & {Feature.ADDONS, Feature.KARMADA, *COMPANIONS}),
                may_release=ReleaseReview(client, recorder) if context.features & features.POLICIES else None,
            ),
            shared.registration,
            UnarmedClusterController(
                context.controllers,
                caches,
                shared.registration,
                shared.gate_source,
                registry=context.registry,
                machines=shared.machines,
                gates=shared.gates,
            ),
            OkToDeleteController(context.controllers, caches),
            *_policy_gates(context, shared, registry),
        ),
        serving=(registry, charts),
        routes=handlers.routes(),
    )


def _policy_gates(context: ManagerContext, shared: Shared, registry: HookRegistry) -> tuple[Component, ...]:
    """The gates Machines and Admission, for Clusters without a ClusterClass."""
    if shared.machines is None or shared.gates is None:
        return ()
    controller = MachineGateController(
        context.server_time,
        shared.caches,
        shared.machines,
        shared.gates,
        GateReader(context.client, shared.keys, shared.gate_source, registry),
        keys=shared.keys,
        hooks=shared.registration,
    )
    return registry, shared.machines, controller


def companions(context: ManagerContext, shared: Shared) -> Components:
    """TeardownPolicies, and the handles of the deployers that they name. Their steps are wired with `capi`."""
    client, controllers, policy_caches = context.client, context.server_time, shared.policy_caches
    handles = HandleCaches(client, (kind for kind in HANDLES if kind.source in shared.companions))
    handles.observe(context.metrics)
    deps = PolicyDeps(policy_caches=policy_caches, handles=handles, clusters=shared.caches, policies=shared.policies)
    kubeconfigs = KubeconfigClusters(client, shared.members, clock=context.clock)
    return Components(
        controllers=(
            policy_caches,
            handles,
            NotificationController(
                controllers,
                NotificationCaches(shared.caches, policy_caches),
                Delivery(
                    AddressRules(
                        allowed=context.options.notification_hosts, own=own_addresses(client.connection.server)
                    ),
                    trust(context.notification_ca),
                    user_agent=MANAGER_USER_AGENT,
                ),
                keys=shared.keys,
                namespace=context.options.namespace,
                counted=NotificationMetrics(context.registry),
            ),
            PolicyController(controllers, deps, shared.registration, machines=shared.machines),
            *(
                [HandleController(controllers, deps, kubeconfigs, copies=shared.copies)]
                if context.features & COMPANIONS
                else []
            ),
        ),
    )


def attribution(context: ManagerContext, shared: Shared) -> Components:
    """The admission webhook that records which user deletes or releases a cluster, and warns that user."""
    caches, features = shared.caches, context.features
    if not features & {Feature.CAPI, Feature.KARMADA}:
        return Components()
    warnings: dict[str, DeletionWarning] = {}
    if isinstance(caches, AddonCaches):
        warnings[CLUSTERS.group] = partial(deletion_warning, caches, shared.registration, gates=shared.gates)
    if Feature.KARMADA in features:
        warnings[MEMBER_CLUSTERS.group] = partial(unjoin_warning, shared.karmada_caches)
    requests = shared.gates.requested_by if Feature.GATES in features and shared.gates else None
    return Components(
        routes=(
            cluster_webhook.route(
                context.client, lambda: caches.clusters.resource, warnings=warnings, requests=requests
            ),
        ),
        ca_bundle_targets=(CABundleTarget(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(context.options.namespace)),),
    )


def protection(context: ManagerContext) -> Components:
    """Deletion protection. While the feature gate is off, only the controller runs: it removes what it created, and
    restores the policies of install."""
    client, namespace = context.client, context.options.namespace
    on = Feature.PROTECTION in context.features and context.options.feature_gates.get(PROTECTION_GATE, False)
    controller = ProtectionController(
        _registration(context),
        on=on,
        mode=context.options.protection.mode,
        policies=policies(Setting(namespace=namespace, features=context.features)),
        restored=RestoreReporter(registry=context.registry, recorder=context.recorder).report,
    )
    if not on:
        return Components(controllers=(controller,))
    caches = ProtectionCaches(client, informers=context.informers)
    caches.observe(context.metrics)
    webhook = ProtectionWebhook(
        counts=caches.counts,
        guards=caches.guards,
        lookup=ProtectionLookup(client, groups=context.options.protection.groups),
        reporter=DenialReporter(registry=context.registry, recorder=context.recorder),
    )
    return Components(
        controllers=(controller,),
        serving=(caches,),
        routes=webhook.routes(),
        ca_bundle_targets=(CABundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, protection_rules(namespace)),),
    )


def webhook_registrations(context: ManagerContext) -> Components:
    """The webhook configurations that do not depend on a feature gate."""

    def wanted(url: str | None, key: bytes) -> list[Object]:
        return webhooks(Setting(namespace=context.options.namespace, features=context.features, url=url, path_key=key))

    return Components(controllers=(WebhookController(_registration(context), wanted),))


def _registration(context: ManagerContext) -> RegistrationDeps:
    return RegistrationDeps(
        shared=context.controllers,
        namespace=context.options.namespace,
        segments=context.segments,
        answering=context.answering,
    )


def _log_member_failed(error: Exception) -> None:
    log.warning("member watch failed, will retry", why=str(error))


def _log_broken(plugin: Plugin) -> None:
    log.error(
        "plugin not loaded, its kinds are blocked",
        plugin=plugin.name,
        source=plugin.source,
        why=plugin.error,
        remedy="fix or uninstall it, then restart the manager",
    )
