"""The controllers of add-ons, as parts of a process."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons import admission
from unwind.addons.configuration_controller import ConfigurationController
from unwind.addons.manifests import profile_rules
from unwind.addons.profile_controller import ProfileController
from unwind.addons.step_source import SummarySteps
from unwind.addons.summary_controller import SummaryController
from unwind.api.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.components import Components
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.registry import installed
from unwind.deploy.helm_uninstall import HelmReleases
from unwind.helm.program import Helm
from unwind.kube.server_time import ServerClock
from unwind.protection import expected_refusals
from unwind.server.routes import CABundleTarget
from unwind.teardown.request_controller import RequestController

if TYPE_CHECKING:
    from unwind.addons.caches import AddonCaches
    from unwind.components import ManagerContext
    from unwind.teardown.gate import GateStatus
    from unwind.teardown.signatures import RecordKeys


def contribute(surroundings: ManagerContext, caches: AddonCaches, gate: GateStatus, keys: RecordKeys) -> Components:
    """What `unwind run` starts. `keys`: by which our Teardowns are recognised."""
    client, metrics, owner = surroundings.client, surroundings.metrics, surroundings.shards
    # Deadlines count from times that the API server wrote.
    clock = ServerClock(client.time)
    namespace = surroundings.namespace
    program = shutil.which("helm")
    helm = Helm(Path(program), replica=owner.identity) if program else None
    plugins = tuple(installed())
    return Components(
        controllers=(
            caches,
            ProfileController(client, caches, owner=owner, metrics=metrics, gate=gate, recorder=surroundings.recorder),
            SummaryController(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                helm=helm,
            ),
            ClusterTeardownController(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                # Without the program a release is held, and says so.
                sources=(SummarySteps(client, caches, releases=HelmReleases(helm)),),
                best_effort=surroundings.best_effort,
                keep=surroundings.keep_teardowns,
                keys=keys,
                clock=clock,
                recorder=surroundings.recorder,
            ),
            RequestController(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                refusals=partial(expected_refusals.refusals, home=namespace),
                keep=surroundings.keep_teardowns,
                keys=keys,
                clock=clock,
            ),
            ConfigurationController(client, caches, namespace=namespace, owner=owner, metrics=metrics),
        ),
        routes=(admission.route(partial(admission.existing, client)),),
        trusting=(CABundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(namespace)),),
    )
