"""A manager that runs requested deletions of handles, for tests: as the installed ServiceAccount."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from tests.eventually import eventually
from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from tests.plane.support.policies import policy_deps
from unwind.api.features import COMPANIONS
from unwind.clock import SYSTEM
from unwind.companions.handle_controller import HandleController
from unwind.companions.handle_kinds import HANDLES
from unwind.companions.handle_requests import HandleRequests
from unwind.companions.kubeconfig_clusters import KubeconfigClusters
from unwind.companions.kubeconfig_copies import KubeconfigCopies
from unwind.install.running_managers import running_managers
from unwind.kube.shards import Shards
from unwind.members.cluster_caches import ClusterCaches
from unwind.preview.removal_forecast import refusals
from unwind.teardown.request_controller import RequestController
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from unwind.api.features import Feature
    from unwind.api.policies import SourceKind
    from unwind.kube.client import Client


@asynccontextmanager
async def handle_manager(
    client: Client,
    home: str,
    *,
    features: Collection[Feature] = COMPANIONS,
    sources: Collection[SourceKind] = (),
) -> AsyncIterator[None]:
    """The controllers of requests and of handles. `sources`: the kinds of handles that are watched."""
    async with manager_client(client, home) as own, removal_deps(own, home) as deps:
        caches = ClusterCaches(own, sveltos_clusters=False)
        read = policy_deps(own, caches, [kind for kind in HANDLES if kind.source in sources], running=sources)
        shared, refused = controller_deps(own), partial(refusals, home=home)
        kubeconfigs = KubeconfigClusters(own, deps.members, clock=SYSTEM)
        components = (
            caches,
            read.policy_caches,
            read.handles,
            HandleController(shared, read, kubeconfigs, copies=KubeconfigCopies(own)),
            RequestController(
                shared,
                caches,
                deps,
                refusals=refused,
                others=HandleRequests(own, deps, features=features, refusals=refused),
            ),
            # By its Leases it is known to be alive.
            Shards(own, namespace=home, identity=f"test-{uuid.uuid4().hex[:6]}"),
        )
        async with running_components(components):
            await eventually(lambda: running_managers(client, home), "a live manager")
            yield
