"""The rights and the webhook that Sveltos profiles need in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, sveltos
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.rights import READ, Contribution, Right
from unwind.installing.addressing import MANAGER, granted, webhook

if TYPE_CHECKING:
    from unwind.api.rights import Setting

PROFILES_PATH = "/admit/profiles"
"""The path of the admission webhook for profiles."""

# CEL: reading a missing field is an error, and on an error the webhook is not called.
_DEPENDS_ON_OTHERS = "has(object.spec) && has(object.spec.dependsOn) && size(object.spec.dependsOn) > 0"
_ANEW = (
    "oldObject == null || !has(oldObject.spec) || !has(oldObject.spec.dependsOn)"
    # The webhook finds out which names are new: CEL may exceed its cost limit over a thousand names.
    " || object.spec.dependsOn != oldObject.spec.dependsOn"
)


def profile_rules(namespace: str) -> str:
    """The name of the webhook configuration for profiles; one per manager."""
    return f"{MANAGER}-profiles.{namespace}"


def _admission(setting: Setting) -> list[dict[str, Any]]:
    """The webhook configuration that checks a profile when its dependsOn changes."""
    name = profile_rules(setting.namespace)
    kind = VALIDATING_WEBHOOK_CONFIGURATIONS
    # The right to write any webhook configuration controls every write in the cluster, so it is for this name only.
    right = Right(kind.group, (kind.plural,), (*READ, "patch"), (name,))
    asking = {
        "name": "profiles.addons.unwind.dev",
        "clientConfig": webhook(setting, PROFILES_PATH),
        "rules": [
            {
                "apiGroups": [sveltos.CONFIG_GROUP],
                "apiVersions": [sveltos.CLUSTER_PROFILES.version],
                "resources": [sveltos.CLUSTER_PROFILES.plural, sveltos.PROFILES.plural],
                "operations": ["CREATE", "UPDATE"],
                "scope": "*",
            }
        ],
        "matchPolicy": "Equivalent",
        # Other writes, such as our own finalizers and annotations, do not call the webhook.
        "matchConditions": [
            {"name": "depends-on-others", "expression": _DEPENDS_ON_OTHERS},
            {"name": "not-as-before", "expression": _ANEW},
        ],
        # A missing manager must not block writes of profiles; the planner handles a cycle that gets in.
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    return [
        *granted(setting, f"{MANAGER}-profiles", rules=[right.rule()]),
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "webhooks": [asking]},
    ]


ADDONS = Contribution(
    name="addons",
    everywhere=(
        Right(sveltos.CONFIG_GROUP, ("clusterprofiles", "profiles"), (*READ, "patch")),
        Right(sveltos.CONFIG_GROUP, ("clusterprofiles/status", "profiles/status"), ("patch",)),
        Right(sveltos.CONFIG_GROUP, ("clustersummaries",), (*READ, "create", "patch", "delete")),
        Right(sveltos.CONFIG_GROUP, ("clusterconfigurations",), ("get", "create", "delete")),
        Right(sveltos.CONFIG_GROUP, ("clustersummaries/status", "clusterconfigurations/status"), ("patch",)),
        Right(sveltos.LIB_GROUP, ("sveltosclusters",), READ),
        Right(capi.CLUSTERS.group, ("clusters",), READ),
        # These hold the manifests to deploy and the kubeconfigs of clusters.
        Right("", ("configmaps", "secrets"), READ),
        # Our finalizer keeps a kubeconfig until everything on its cluster is removed.
        Right("", ("secrets",), ("patch",)),
    ),
    kinds=(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, VALIDATING_WEBHOOK_CONFIGURATIONS),
    manifests=_admission,
)
