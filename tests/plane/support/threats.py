"""The table of threats: kind, the rights of a tenant, what must not happen. docs/threat-model.md explains each row.

`test_threat_model.py` carries each row out as a ServiceAccount with exactly the rights of the row, against a running
manager. A unit test fails if a resource that the manager's roles let it watch has no row here. Add rows for a new kind
to the group that it belongs to; a row without `attempt` needs a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.plane.support.threat_attempts import (
    Stage,
    a_cluster_names_no_former_owner_that_is_another_profiles,
    a_cluster_names_no_other_user_as_the_one_who_decided,
    a_cluster_profile_reads_nothing_that_its_author_may_not,
    a_karmada_cluster_sends_no_token_that_its_author_may_not_read,
    a_profile_of_a_namespace_reaches_no_cluster_of_another,
    a_profile_reads_no_secret_that_its_author_may_not,
    a_sveltos_cluster_uses_no_secret_that_its_author_may_not_read,
    a_teardown_deletes_nothing_that_its_author_may_not,
    an_inventory_outside_of_unwinds_namespace_means_nothing,
    records_of_unwind_are_not_written,
    summaries_are_not_changed,
    summaries_are_not_written,
)
from unwind.api import capi, karmada, sveltos, unwind
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import CONFIG_MAPS, LEASES, SECRETS, Resource
from unwind.api.rights import READ, Right

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


WRITE = (*READ, "create", "update", "patch", "delete")


class Threat(NamedTuple):
    """One row."""

    resource: str
    """As RBAC names it: `clustersummaries.config.projectsveltos.io`."""
    must_not: str
    rights: tuple[Right, ...] = ()
    """In the tenant's namespace."""
    everywhere: tuple[Right, ...] = ()
    """In the whole cluster."""
    attempt: Callable[[Stage], Awaitable[None]] | None = None
    reason: str = ""
    """Why nothing is tried."""


def named(resource: Resource) -> str:
    """How RBAC names a resource."""
    return f"{resource.plural}.{resource.group}".rstrip(".")


# The table


def _all(resource: Resource, *verbs: str) -> Right:
    return Right(resource.group, (resource.plural,), verbs or WRITE)


_CREATE_ONLY = ("create", "get", "patch", "delete")


COMPANIONS = (
    Threat(
        named(TEARDOWN_POLICIES),
        "",
        reason="cluster-scoped and in no aggregated role: its writers administer the clusters that it selects",
    ),
    Threat(
        named(capi.MACHINES),
        "",
        reason="only an annotation is written, on Machines of Clusters that a policy selects, in the same namespace",
    ),
    Threat(named(capi.MACHINE_POOLS), "", reason="only counted: they can show a gate as not armed, and open none"),
    Threat(named(KUSTOMIZATIONS), "", reason="a step only of a cluster whose policy names its namespace: see policies"),
    Threat(named(HELM_RELEASES), "", reason="a step only of a cluster whose policy names its namespace: see policies"),
    Threat(
        named(HELM_RELEASE_PROXIES),
        "",
        reason="a step only of a cluster whose policy names its namespace: see policies",
    ),
)


ADDONS = (
    Threat(
        named(sveltos.CLUSTER_SUMMARIES),
        "the manager deploys to another namespace's cluster, or to the management cluster",
        rights=(_all(sveltos.CLUSTER_SUMMARIES),),
        attempt=summaries_are_not_written,
    ),
    Threat(
        named(sveltos.CLUSTER_SUMMARIES),
        "a summary of the manager says something else, or goes, because a tenant says so",
        everywhere=(_all(sveltos.CLUSTER_SUMMARIES),),
        attempt=summaries_are_not_changed,
    ),
    Threat(
        named(sveltos.PROFILES),
        "the manager deploys a Secret that the author may not read, or to the management cluster",
        rights=(_all(sveltos.PROFILES), _all(CONFIG_MAPS)),
        attempt=a_profile_reads_no_secret_that_its_author_may_not,
    ),
    Threat(
        named(sveltos.PROFILES),
        "a Profile reaches a cluster of another namespace",
        rights=(_all(sveltos.PROFILES), _all(CONFIG_MAPS)),
        attempt=a_profile_of_a_namespace_reaches_no_cluster_of_another,
    ),
    Threat(
        named(sveltos.CLUSTER_PROFILES),
        "the manager deploys what the author may not read, or to the management cluster",
        rights=(_all(CONFIG_MAPS),),
        everywhere=(_all(sveltos.CLUSTER_PROFILES),),
        attempt=a_cluster_profile_reads_nothing_that_its_author_may_not,
    ),
    Threat(
        named(sveltos.SVELTOS_CLUSTERS),
        "the manager uses a kubeconfig that the author may not read",
        rights=(_all(sveltos.SVELTOS_CLUSTERS),),
        attempt=a_sveltos_cluster_uses_no_secret_that_its_author_may_not_read,
    ),
    Threat(named(CONFIG_MAPS), "", reason="read only where a profile names it: see profiles and clusterprofiles"),
    Threat(named(SECRETS), "", reason="read only where a profile or a cluster names it: see there"),
)


CLUSTERS = (
    Threat(
        named(capi.CLUSTERS),
        "the ledger names a user who decided nothing",
        rights=(_all(capi.CLUSTERS),),
        attempt=a_cluster_names_no_other_user_as_the_one_who_decided,
    ),
    Threat(
        named(capi.CLUSTERS),
        "a tenant's profile adopts or prunes objects of another profile on the same member",
        rights=(_all(capi.CLUSTERS), _all(sveltos.PROFILES), _all(CONFIG_MAPS)),
        attempt=a_cluster_names_no_former_owner_that_is_another_profiles,
    ),
    Threat(
        named(karmada.CLUSTERS),
        "the manager sends a token that the author may not read to a server of the author's",
        everywhere=(_all(karmada.CLUSTERS),),
        attempt=a_karmada_cluster_sends_no_token_that_its_author_may_not_read,
    ),
    Threat(
        named(karmada.WORKS),
        "",
        reason="acted on in the execution namespace of a member only, where writing Works is the right to that member:"
        " the last test of test_threat_model.py",
    ),
    Threat(
        named(capi.EXTENSION_CONFIGS),
        "",
        reason="the manager reads whether its own is as it wrote it; a policy guards that: test_registration.py",
    ),
)


RECORDS = (
    Threat(
        named(unwind.TEARDOWNS),
        "the manager deletes what the author may not",
        everywhere=(Right(unwind.GROUP, ("teardowns",), _CREATE_ONLY),),
        attempt=a_teardown_deletes_nothing_that_its_author_may_not,
    ),
    Threat(
        named(unwind.INVENTORIES),
        "the manager removes what it did not deploy",
        rights=(_all(unwind.INVENTORIES),),
        attempt=an_inventory_outside_of_unwinds_namespace_means_nothing,
    ),
    Threat(
        named(unwind.INVENTORIES),
        "a user who may write Inventories in Unwind's namespace has the manager remove what they like",
        everywhere=(_all(unwind.INVENTORIES), _all(LEASES)),
        attempt=records_of_unwind_are_not_written,
    ),
)


_COUNTED = "protection counts these and reads their label; nothing is written or deleted because of what they say"


PROTECTION = tuple(
    Threat(resource, "", reason=_COUNTED)
    for resource in (
        "namespaces",
        "pods",
        "services",
        "persistentvolumes",
        "persistentvolumeclaims",
        "deployments.apps",
        "statefulsets.apps",
        "daemonsets.apps",
        "replicasets.apps",
        "jobs.batch",
        "cronjobs.batch",
        "ingresses.networking.k8s.io",
        "clonesets.apps.kruise.io",
        "statefulsets.apps.kruise.io",
        "uniteddeployments.apps.kruise.io",
        "*.*",
    )
)


_OWN = "the manager restores its own, by name, to what it renders; it takes no word from another"


OWN_OBJECTS = (
    *(
        Threat(f"{plural}.admissionregistration.k8s.io", "", reason=_OWN)
        for plural in (
            "validatingwebhookconfigurations",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        )
    ),
    Threat(
        "customresourcedefinitions.apiextensions.k8s.io",
        "",
        reason="the manager waits for its kinds to be served; writing CRDs is an administrator's right",
    ),
    Threat(
        "leases.coordination.k8s.io",
        "",
        reason="read in Unwind's own namespace only, where a policy guards them: see inventories",
    ),
)


THREATS: tuple[Threat, ...] = (*ADDONS, *COMPANIONS, *CLUSTERS, *RECORDS, *PROTECTION, *OWN_OBJECTS)
