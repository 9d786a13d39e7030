"""Every label, annotation, finalizer, field manager, condition and reason: each once, with what it is for."""

from __future__ import annotations

from enum import StrEnum

PREFIX = "unwind.dev/"
"""What is ours begins with it. Uninstalling goes by it, so nothing else may."""

# Who writes. Field managers are our own, also on kinds that others defined.
FIELD_MANAGER = "unwind"
INSTALL_FIELD_MANAGER = "unwind-install"
GATE_FIELD_MANAGER = "unwind-gate"
"""Writes one condition of a Teardown; another part of Unwind writes the rest of its status, and neither takes out what
the other said."""

# The mark of what `unwind install` put there. Only what carries it is changed or deleted by uninstall.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY_UNWIND = "unwind"
NAME_LABEL = "app.kubernetes.io/name"
ADOPTED_FIELDS_ANNOTATION = "unwind.dev/adopted-fields"
"""On a CRD that somebody else installed: the fields that `unwind install --adopt-crds` added to it."""

# The mark of what was deployed. It carries the owner's uid, because a name may be taken again by another.
OWNER_LABEL = "unwind.dev/owner"
MEMBER_LABEL = "unwind.dev/member-uid"
"""On an Inventory: the uid of what stands for the cluster that it is about, to find what nobody else knows of."""
FURTHER_LABEL = "unwind.dev/further"
"""On an Inventory that is not the first of its owner. Few have more than one: all of these are listed in no time."""

# What people say with annotations.
DEADLINE_ANNOTATION = "unwind.dev/deadline"
"""On a cluster: how long its teardown may take, counted from deletionTimestamp (30m)."""
ON_DEADLINE_ANNOTATION = "unwind.dev/on-deadline"
"""On a cluster: what happens then. See OnDeadline."""
FORCE_RELEASE_ANNOTATION = "unwind.dev/force-release"
"""On a cluster: let it go now; the value is the reason, and goes into the ledger with who set it."""
FORCE_RELEASE_BY_ANNOTATION = "unwind.dev/force-release-by"
"""On a cluster: the user who set the one above. Written when the API server is asked to; nobody else's word counts."""
TAKE_ALONG_ANNOTATION = "unwind.dev/take-along"
"""On a profile, "true": its namespaces and CRDs go even if something foreign is in them. The plan lists what."""
ADOPT_ANNOTATION = "unwind.dev/adopt"
"""On a profile, "true": what is there already under the name of an add-on is updated, and released in the end."""
KUBERNETES_VERSIONS_ANNOTATION = "unwind.dev/kubernetes-versions"
"""On a profile: the versions that its add-ons are for (>=1.29 <1.34). A cluster is not upgraded to any other."""
DELETE_POLICY_ANNOTATION = "unwind.dev/delete-policy"
"""On a resource or a namespace: manage, skip or detach-on-delete."""
REMOVE_STRATEGY_ANNOTATION = "unwind.dev/remove-strategy"
"""On a Karmada Cluster whose API server does not know spec.removeStrategy: the same."""
SCALE_TO_ZERO_ANNOTATION = "unwind.dev/scale-to-zero"
"""On a workload, "true": before it is deleted it is scaled to zero, and its Pods are waited for."""
WAIT_FOR_DEPENDENTS_ANNOTATION = "unwind.dev/wait-for-dependents"
"""On an object, resources separated by commas (pods,jobs.batch): those that it owns go before it does."""
DELETE_MODE_ANNOTATION = "unwind.dev/delete-mode"
"""On what is only soft-deleted at first, such as a Key Vault: SoftDelete (the default), or Purge."""
DEPENDS_ON_ANNOTATION = "unwind.dev/depends-on"
"""On a Work: the names of Works that it needs, separated by commas."""

# What Unwind remembers on objects.
DELETION_BEHAVIOR_ANNOTATION = "unwind.dev/cluster-deletion-behavior"
"""On a ClusterSummary: the behaviour its profile had, in case the field disappears from the served schema."""
CLUSTER_UID_ANNOTATION = "unwind.dev/cluster-uid"
"""On a ClusterSummary: the cluster that it was made for. Another one that gets its name gets summaries of its own."""
ADOPTED_ANNOTATION = "unwind.dev/adopted"
"""On a deployed object, "true": it was there before, and is never deleted, whoever takes it over."""
CREDENTIALS_ANNOTATION = "unwind.dev/credentials-secret"
"""On a ClusterSummary: the Secret that its cluster is reached by, which is let go when the cluster is gone already."""
DELETION_REQUESTED_BY_ANNOTATION = "unwind.dev/deletion-requested-by"
"""On a cluster that is being deleted: the user who asked for it."""
HANDLERS_ANNOTATION = "unwind.dev/handlers"
"""On our ExtensionConfig: the handlers that Cluster API is to discover, as a hash. A new value makes it look again."""
MEMO_ANNOTATION = "unwind.dev/memo."
"""On an object that is deleted in several steps, followed by a deleter and a key: what must not be done twice. One
annotation a key, so that two writers at once lose nothing of each other."""


class Finalizer(StrEnum):
    """Ours. Each says what is still to be done before the object may go."""

    PROFILE = "unwind.dev/profile"
    """ClusterProfile, Profile: its add-ons are withdrawn."""
    SUMMARY = "unwind.dev/summary"
    """ClusterSummary: what it put on its cluster is removed or released."""
    INVENTORY = "unwind.dev/inventory"
    """Inventory: it is the only account of what was deployed."""
    CREDENTIALS = "unwind.dev/credentials"
    """A member's kubeconfig Secret: credentials have to outlast what needs them."""
    MEMBER = "unwind.dev/member"
    """Karmada Cluster: its Works are done with as its removeStrategy says."""
    WORK = "unwind.dev/work"
    """Work: its objects are seen absent, or released."""
    EXTERNAL = "unwind.dev/external"
    """A resource with an external end: that end is gone."""


# Of Cluster API.
CLUSTER_NAME_LABEL = "cluster.x-k8s.io/cluster-name"
PAUSED_ANNOTATION = "cluster.x-k8s.io/paused"
OK_TO_DELETE_ANNOTATION = "runtime.cluster.x-k8s.io/ok-to-delete"
"""Set by Cluster API once every BeforeClusterDelete hook let go; set by hand, it skips them."""
INJECT_CA_ANNOTATION = "runtime.cluster.x-k8s.io/inject-ca-from-secret"
"""On an ExtensionConfig, namespace/name: its caBundle is the ca.crt of that Secret."""

# Of Sveltos: on what it deployed, and on its own kinds.
SVELTOS_REASON_LABEL = "projectsveltos.io/reason"
SVELTOS_REFERENCE_ANNOTATION = "projectsveltos.io/reference-"
"""Followed by kind, name, namespace or tier."""
SVELTOS_OWNER_ANNOTATION = "projectsveltos.io/owner-"
"""Followed by kind, name or tier."""
SVELTOS_HASH_ANNOTATION = "projectsveltos.io/hash"
SVELTOS_TEMPLATE_ANNOTATION = "projectsveltos.io/template"
"""On a source of manifests: they are templates. The next two: they are made by a program; a status is set, too."""
SVELTOS_LUA_ANNOTATION = "projectsveltos.io/lua"
SVELTOS_SUBRESOURCES_ANNOTATION = "projectsveltos.io/subresources"
SVELTOS_CLUSTER_PROFILE_LABEL = "projectsveltos.io/cluster-profile-name"
SVELTOS_PROFILE_LABEL = "projectsveltos.io/profile-name"
SVELTOS_CLUSTER_NAME_LABEL = "projectsveltos.io/cluster-name"
SVELTOS_CLUSTER_TYPE_LABEL = "projectsveltos.io/cluster-type"
"""On a ClusterSummary: whose it is, and for which cluster."""
SVELTOS_CLUSTER_PROFILE_FINALIZER = "clusterprofilefinalizer.projectsveltos.io"
SVELTOS_PROFILE_FINALIZER = "profilefinalizer.projectsveltos.io"
SVELTOS_SUMMARY_FINALIZER = "clustersummaryfinalizer.projectsveltos.io"

# Of Helm: on what it deployed, and in charts.
MANAGED_BY_HELM = "Helm"
"""What MANAGED_BY_LABEL says on an object of a release."""
HELM_RELEASE_ANNOTATION = "meta.helm.sh/release-name"
HELM_NAMESPACE_ANNOTATION = "meta.helm.sh/release-namespace"
HELM_KEEP_ANNOTATION = "helm.sh/resource-policy"
"""On an object of a chart: it stays when the release goes."""
HELM_HOOK_ANNOTATION = "helm.sh/hook"
"""On an object of a chart: when Helm creates it. It is no part of the release, and stays when that goes."""
CHART_INPUTS_LABEL = "unwind.dev/chart-inputs"
"""On a release's Secret: chart, values and options that it was made of, as a hash."""
CHART_UNINSTALL_LABEL = "unwind.dev/chart-uninstall"
"""On a release's Secret: how it is to be uninstalled, when its profile may be gone."""

# Of Karmada: on what a Work deployed, and on its own kinds.
KARMADA_MANAGED_LABEL = "karmada.io/managed"
KARMADA_WORK_NAME_ANNOTATION = "work.karmada.io/name"
KARMADA_WORK_NAMESPACE_ANNOTATION = "work.karmada.io/namespace"
KARMADA_CLUSTER_FINALIZER = "karmada.io/cluster-controller"
KARMADA_WORK_FINALIZER = "karmada.io/execution-controller"
KARMADA_NOT_READY_TAINT = "cluster.karmada.io/not-ready"
KARMADA_EXECUTION_NAMESPACE = "karmada-es-"
"""Followed by the cluster's name: where its Works are."""

# Of OpenKruise and of Azure Service Operator.
DELETE_PROTECTION_LABEL = "policy.kruise.io/delete-protection"
RECONCILE_POLICY_ANNOTATION = "serviceoperator.azure.com/reconcile-policy"
AZURE_FINALIZER = "serviceoperator.azure.com/finalizer"
AZURE_RESOURCE_ID_ANNOTATION = "serviceoperator.azure.com/resource-id"
"""The ARM id of what an object stands for: written together with the finalizer, before anything is created."""

# What people say with labels.
AGGREGATE_LABEL = "rbac.unwind.dev/aggregate-to-manager"
"""On a ClusterRole, "true": the manager has its rights, too. For kinds that are not known when Unwind is installed."""


MARKED_LABELS = (OWNER_LABEL, SVELTOS_REASON_LABEL, KARMADA_MANAGED_LABEL)
"""The labels of what was deployed. They are taken off where an object is released."""
MARKED_ANNOTATIONS = (
    *(SVELTOS_REFERENCE_ANNOTATION + field for field in ("kind", "name", "namespace", "tier")),
    *(SVELTOS_OWNER_ANNOTATION + field for field in ("kind", "name", "tier")),
    SVELTOS_HASH_ANNOTATION,
    ADOPTED_ANNOTATION,
    KARMADA_WORK_NAME_ANNOTATION,
    KARMADA_WORK_NAMESPACE_ANNOTATION,
)
"""And its annotations."""


class ConditionType(StrEnum):
    """What is said in status.conditions."""

    READY = "Ready"
    PLANNED = "Planned"
    """Teardown: the plan is made and written down."""
    COMPLETE = "Complete"
    """Teardown: everything that had to be removed was seen to be absent."""
    BLOCKED = "Blocked"
    """Something is waited for; the message says for what, since when, and who must act."""
    UNKNOWN_VALUE = "UnknownValue"
    """A policy, a label or a behaviour says a word that is not known: nothing is deleted because of it."""
    FIELD_NOT_SERVED = "FieldNotServed"
    """The API server does not know a field that Unwind goes by; the stricter known value holds."""
    CYCLE_BROKEN = "CycleBroken"
    """Teardown: steps depend on each other in a circle, and go in one wave."""
    GATE_NOT_AVAILABLE = "GateNotAvailable"
    """Teardown: the target cannot be held; Cluster API asks no hook about a Cluster without ClusterClass."""
    GATE_NOT_ARMED = "GateNotArmed"
    """Profile, Teardown: Cluster API would delete a cluster without asking; the message says why."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    UNREACHABLE = "MemberUnreachable"
    UNJOINING = "Unjoining"
    """Karmada Cluster: from the proposal."""
    UNJOIN_FAILED = "UnjoinFailed"
    """Karmada Cluster: from the proposal."""
    APPLIED = "Applied"
    """Work: its manifests are on the member."""
    ACCEPTED = "Accepted"
    """Profile: all that it says is known and can be done. If not, nothing of it is put anywhere or changed."""
    DRY_RUN = "DryRun"
    """ClusterSummary: what would be done; nothing was."""


class Reason(StrEnum):
    """Why a condition is as it is."""

    UNJOIN_CLUSTER = "UnjoinCluster"
    """Of Unjoining: from the proposal."""
    NO_CLUSTER_CLASS = "NoClusterClass"
    NOT_REGISTERED = "NotRegistered"
    """Of GateNotArmed, as the four below: there is no ExtensionConfig of ours, or it is being deleted."""
    NOT_DISCOVERED = "NotDiscovered"
    """Cluster API has not found out what our extension answers to."""
    HANDLER_MISSING = "HandlerMissing"
    """What Cluster API knows of our extension does not have the handler that holds clusters."""
    FAILURES_IGNORED = "FailuresIgnored"
    """Cluster API lets clusters go when our extension does not answer."""
    NAMESPACE_NOT_SELECTED = "NamespaceNotSelected"
    """Our extension is not asked about clusters of the namespace."""
    FIELD_NOT_SERVED = "FieldNotServed"
    TARGET_GONE = "TargetGone"
    """The target vanished before everything was verified."""
    FORCED = "Forced"
    """A person let it go."""
    DEADLINE = "Deadline"
    """The deadline passed, and on-deadline is Release."""
    KEPT_BY_POLICY = "KeptByPolicy"
    NOT_OURS = "NotOurs"
    """Somebody else's object stands where ours should be."""
    FOREIGN_CONTENT = "ForeignContent"
    """A Namespace or CRD that holds what is not ours."""
    UNKNOWN_VALUE = "UnknownValue"
    UNREACHABLE = "Unreachable"
    UNAUTHENTICATED = "Unauthenticated"
    """The other side was not asked: there is no token for it."""
    FAILED = "Failed"
    """It did not work; the message says what."""
    HELD = "Held"
    """It is not deleted because something that has a say in it is not known; the message says what."""
    DELETING = "Deleting"
    """It is being deleted; the message says what is waited for."""
    FINALIZER = "Finalizer"
    """A finalizer holds it; the message says whose."""
    FINALIZER_NOT_SERVED = "FinalizerNotServed"
    """A finalizer holds it, and whoever should see to that does not run."""
    OWNS_OTHERS = "OwnsOthers"
    """What it owns goes before it."""
    IN_USE = "InUse"
    """A volume, or a claim to one, that somebody still uses."""
    HOLDS_OTHERS = "HoldsOthers"
    """A Namespace or a CRD whose contents go before it."""
    API_NOT_SERVED = "ApiNotServed"
    """Part of the API does not answer, so nobody can tell what there is."""
    PURGE_PROTECTED = "PurgeProtected"
    """It is deleted, and may be recovered until a date: nobody can have it purged before."""
    ACCEPTED = "Accepted"
    NOT_SUPPORTED = "NotSupported"
    """It uses what Unwind cannot do yet; the message says what."""
    CYCLE = "Cycle"
    """It depends on itself by way of others; the message names them."""
    NAME_TAKEN = "NameTaken"
    """The name that its ClusterSummary has to have belongs to that of another profile."""
    WAITING = "Waiting"
    """For others on the same cluster; the message names them."""
    NOT_READY = "NotReady"
    """The cluster cannot be deployed to yet."""
    PAUSED = "Paused"
    """The cluster is paused: nothing is done on it."""
    UNMANAGED = "Unmanaged"
    """The cluster is managed no longer, which leaves what is on it as it is."""
    WOULD_CHANGE = "WouldChange"
    """Of DryRun: there is something to do."""
    GAVE_UP = "GaveUp"
    """Best effort was made, and its time is over."""


class EventReason(StrEnum):
    """What happened, in Events. While something is waited for, they say the reason of the condition."""

    FINALIZER_SET = "FinalizerSet"
    DELETION_STARTED = "DeletionStarted"
    GONE = "Gone"
    """What the object stands for was seen to be absent."""
    KEPT = "Kept"
    """What the object stands for was deliberately not deleted; it is in the ledger."""
