"""Rights that TeardownPolicies and each companion need. On members, Unwind has the rights of their kubeconfig."""

from __future__ import annotations

from unwind.api import features, policies, sveltos, unwind
from unwind.api.caaph import HELM_CHART_PROXIES, HELM_RELEASE_PROXIES
from unwind.api.features import Feature
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.resources import SECRETS, Resource
from unwind.api.rights import READ, Contribution, Right

CREDENTIALS = Right.on(
    SECRETS,
    ("get", "patch"),
    why="Connects to the clusters that a policy selects, and keeps their kubeconfig until the end (finalizer).",
)


def _handles(resource: Resource, why: str) -> Right:
    return Right.on(resource, (*READ, "patch", "delete"), why=why)


POLICIES = Contribution(
    name="policies",
    features=features.POLICIES,
    everywhere=(
        Right(
            unwind.GROUP,
            (policies.TEARDOWN_POLICIES.plural,),
            READ,
            why="Reads which policies select a cluster.",
        ),
        Right(
            unwind.GROUP,
            (f"{policies.TEARDOWN_POLICIES.plural}/status",),
            ("patch",),
            why="Records which clusters a policy selects, and what it finds for them.",
        ),
    ),
)
FLUX = Contribution(
    name="flux",
    features=frozenset({Feature.FLUX}),
    everywhere=(
        _handles(KUSTOMIZATIONS, "Reads the inventories of Kustomizations, and deletes Kustomizations in order."),
        _handles(HELM_RELEASES, "Reads the inventories of HelmReleases, and deletes HelmReleases in order."),
        CREDENTIALS,
    ),
)
CAAPH = Contribution(
    name="caaph",
    features=frozenset({Feature.CAAPH}),
    everywhere=(
        _handles(
            HELM_RELEASE_PROXIES, "Reads HelmReleaseProxies, holds them with a finalizer, and deletes them in order."
        ),
        Right.on(
            HELM_CHART_PROXIES,
            ("get", "list"),
            why="Reads the order of HelmReleaseProxies from the annotation unwind.dev/depends-on.",
        ),
        CREDENTIALS,
    ),
)
HELM = Contribution(
    name="helm",
    features=frozenset({Feature.HELM}),
    everywhere=(
        Right.on(HELM_RELEASE_PROXIES, ("list",), why="Leaves out Helm releases that a HelmReleaseProxy drives."),
        Right.on(sveltos.CLUSTER_SUMMARIES, ("list",), why="Leaves out Helm releases that a ClusterSummary drives."),
        CREDENTIALS,
    ),
)
