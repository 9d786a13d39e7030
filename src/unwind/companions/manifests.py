"""Rights that TeardownPolicies and each companion need. On members, Unwind has the rights of their kubeconfig."""

from __future__ import annotations

from unwind.api import features, policies, sveltos, unwind
from unwind.api.features import Feature
from unwind.api.resources import SECRETS
from unwind.api.rights import READ, Contribution, Right

CREDENTIALS = Right.on(
    SECRETS,
    ("get", "patch"),
    why="Connects to the clusters that a policy selects, and keeps their kubeconfig until the end (finalizer).",
)

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
        Right(
            "kustomize.toolkit.fluxcd.io",
            ("kustomizations",),
            ("get", "list", "watch", "patch", "delete"),
            why="Reads the inventories of Kustomizations, and deletes Kustomizations in order.",
        ),
        Right(
            "helm.toolkit.fluxcd.io",
            ("helmreleases",),
            ("get", "list", "watch", "patch", "delete"),
            why="Reads the inventories of HelmReleases, and deletes HelmReleases in order.",
        ),
        CREDENTIALS,
    ),
)
CAAPH = Contribution(
    name="caaph",
    features=frozenset({Feature.CAAPH}),
    everywhere=(
        Right(
            "addons.cluster.x-k8s.io",
            ("helmreleaseproxies",),
            ("get", "list", "watch", "patch", "delete"),
            why="Reads HelmReleaseProxies, holds them with a finalizer, and deletes them in order.",
        ),
        Right(
            "addons.cluster.x-k8s.io",
            ("helmchartproxies",),
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
        Right(
            "addons.cluster.x-k8s.io",
            ("helmreleaseproxies",),
            ("list",),
            why="Leaves out Helm releases that a HelmReleaseProxy drives.",
        ),
        Right.on(sveltos.CLUSTER_SUMMARIES, ("list",), why="Leaves out Helm releases that a ClusterSummary drives."),
        CREDENTIALS,
    ),
)
