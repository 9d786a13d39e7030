"""Rights, the webhook for profiles, and the admission policy for ClusterSummaries.

The admission policy for ClusterSummaries: only the manager writes what makes it act.

A ClusterSummary tells the manager what to deploy to which cluster, with the manager's credentials. Users write
profiles; the manager derives summaries from them. So no other user creates a summary, deletes it, or changes its spec,
its owners, our finalizer, or a label or annotation of Unwind. Kubernetes' garbage collector may remove owners and
delete summaries without one, and the namespace controller may delete the summaries of a terminating namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, names, sveltos
from unwind.api.admission import BY_MANAGER, policy_and_binding, resource_rule
from unwind.api.features import Feature
from unwind.api.resources import (
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import READ, Contribution, Right
from unwind.server.manager_names import MANAGER, manager_object, webhook

if TYPE_CHECKING:
    from unwind.api.rights import Setting


_ACCOUNT = "system:serviceaccount:kube-system:"
_CONTROLLERS = "system:kube-controller-manager"
"""The user of Kubernetes' controllers when they do not use separate ServiceAccounts."""
_COLLECTOR = (f"{_ACCOUNT}generic-garbage-collector", _CONTROLLERS)
_DELETERS = (*_COLLECTOR, f"{_ACCOUNT}namespace-controller")


summaries_name = manager_object("summaries")
"""The name of the policy; one per manager."""


def unchanged(field: str) -> str:
    """CEL: whether all labels, or all annotations, of Unwind are unchanged."""
    new, old = (f"{of}.metadata.?{field}.orValue({{}})" for of in ("object", "oldObject"))
    return (
        f"{new}.all(k, !k.startsWith('{names.PREFIX}') || (k in {old} && {old}[k] == {new}[k]))"
        f" && {old}.all(k, !k.startsWith('{names.PREFIX}') || k in {new})"
    )


def _by(users: tuple[str, ...]) -> str:
    return f"request.userInfo.username in [{', '.join(repr(user) for user in users)}]"


def _refused(expression: str, message: str) -> dict[str, Any]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _manifests(setting: Setting) -> list[dict[str, Any]]:
    new_owners, old_owners = (f"{of}.metadata.?ownerReferences.orValue([])" for of in ("object", "oldObject"))
    ours = f"'{names.Finalizer.SUMMARY.value}' in {{}}.metadata.?finalizers.orValue([])"
    updated = "request.operation != 'UPDATE'"
    policy = {
        "matchConstraints": {"resourceRules": [resource_rule(sveltos.CLUSTER_SUMMARIES, "CREATE", "UPDATE", "DELETE")]},
        "matchConditions": [{"name": "not-the-manager", "expression": f"!{BY_MANAGER}"}],
        "validations": [
            _refused(
                "request.operation != 'CREATE'",
                "ClusterSummaries are created by Unwind only: create a ClusterProfile or Profile",
            ),
            _refused(
                f"request.operation != 'DELETE' || {_by(_DELETERS)}",
                "ClusterSummaries are deleted by Unwind only: change or delete the profile, or the cluster's labels",
            ),
            _refused(
                f"{updated} || object.spec == oldObject.spec",
                "the spec of a ClusterSummary is written by Unwind only: change the profile",
            ),
            _refused(
                f"{updated} || {new_owners} == {old_owners} || ({_by(_COLLECTOR)}"
                f" && {new_owners}.all(one, {old_owners}.exists(before, before.uid == one.uid)))",
                "the ownerReferences of a ClusterSummary are written by Unwind only: leave them as they are",
            ),
            _refused(
                f"{updated} || ({ours.format('object')}) == ({ours.format('oldObject')})",
                f"the finalizer {names.Finalizer.SUMMARY.value} is written by Unwind only: to remove the add-on,"
                " change or delete the profile",
            ),
            _refused(
                f"{updated} || ({unchanged('annotations')} && {unchanged('labels')})",
                f"labels and annotations {names.PREFIX}... of a ClusterSummary are written by Unwind only:"
                " set them on the profile",
            ),
        ],
    }
    return policy_and_binding(summaries_name(setting.namespace), policy)


SUMMARIES = Contribution(
    name="summaries",
    features=frozenset({Feature.ADDONS}),
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)


# The rights and the webhook that Sveltos profiles need in a cluster.

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
        # The API server's defaults are explicit, because the manager compares existing webhooks with this.
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
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
    return [{"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "webhooks": [asking]}]


def _own_webhook(setting: Setting) -> list[Right]:
    kind = VALIDATING_WEBHOOK_CONFIGURATIONS
    # The right to write any webhook configuration controls every write in the cluster, so it is for this name only.
    names = (profile_rules(setting.namespace),)
    why = "Registers its own webhook, and writes the CA bundle."
    return [Right.on(kind, ("list", "watch", "create", "patch"), names=names, why=why)]


ADDONS = Contribution(
    name="addons",
    features=frozenset({Feature.ADDONS}),
    everywhere=(
        Right(
            sveltos.CONFIG_GROUP,
            ("clusterprofiles", "profiles"),
            (*READ, "patch"),
            why="Watches profiles, and sets its finalizer.",
        ),
        Right(
            sveltos.CONFIG_GROUP,
            ("clusterprofiles/status", "profiles/status"),
            ("patch",),
            why="Reports the clusters that a profile matches.",
        ),
        Right.on(
            sveltos.CLUSTER_SUMMARIES,
            (*READ, "create", "patch", "delete"),
            why="Creates a ClusterSummary for each profile and cluster, and deletes it when the profile is withdrawn.",
        ),
        Right.on(
            sveltos.CLUSTER_CONFIGURATIONS, ("get", "create", "delete"), why="Lists what is deployed on a cluster."
        ),
        Right(
            sveltos.CONFIG_GROUP,
            ("clustersummaries/status", "clusterconfigurations/status"),
            ("patch",),
            why="Reports what is deployed.",
        ),
        Right.on(sveltos.SVELTOS_CLUSTERS, READ, why="Watches the clusters that profiles match."),
        Right.on(capi.CLUSTERS, READ, why="Watches the clusters that profiles match."),
        Right(
            "",
            ("configmaps", "secrets"),
            READ,
            why="Profiles name the ConfigMaps and Secrets with the manifests to deploy, in any namespace. The Secret"
            " with the kubeconfig of a cluster is in the namespace of the cluster.",
        ),
        Right.on(
            SECRETS, ("patch",), why="Its finalizer keeps a kubeconfig until everything on its cluster is removed."
        ),
    ),
    everywhere_by_name=_own_webhook,
    kinds=(VALIDATING_WEBHOOK_CONFIGURATIONS,),
    manifests=_admission,
)
