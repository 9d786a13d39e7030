"""Arguments and options that commands share: kubeconfig, TARGET, namespaces, volumes, durations and lists."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unwind.api import annotation_values, capi, karmada, sveltos
from unwind.api.annotation_values import VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.names import VOLUMES_ANNOTATION
from unwind.api.resources import NAMESPACES
from unwind.cli import teardowns
from unwind.errors import UnwindError, UsageError
from unwind.kube import discovery as api_discovery
from unwind.kube.discovery import Named
from unwind.kube.errors import ApiError
from unwind.members import cluster_lookup

if TYPE_CHECKING:
    from datetime import timedelta

    from cyclopts.completion import CompletionContext

    from unwind.kube.client import Client
    from unwind.kube.discovery import Discovery
    from unwind.preview.object_preview import Foreseen

Kubeconfig = Annotated[
    Path | None,
    Parameter(help="The kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the Pod's ServiceAccount."),
]
Context = Annotated[str | None, Parameter(help="The kubeconfig context; default: the current context.")]
Namespace = Annotated[str, Parameter(help="The namespace that Unwind is installed in.")]
InstalledNamespace = Annotated[Namespace, Parameter(env_var="UNWIND_NAMESPACE")]
Flag = Annotated[bool, Parameter(negative="")]
"""An option without a value, and without --no-…."""
Yes = Annotated[Flag, Parameter(help="Do not ask for confirmation.")]
OUTPUT = Parameter(name=["--output", "-o"], help="Output format.")
Output = Annotated[Literal["table", "json"], OUTPUT]

_CLUSTERS = ("cluster", "clusters")


def words(text: str) -> list[str]:
    """The values of a comma-separated option."""
    return [word for word in text.replace(" ", "").split(",") if word]


def duration(text: str, *, option: str) -> timedelta:
    """The value of a duration option."""
    read = annotation_values.parse_duration(text)
    if isinstance(read, Unknown):
        raise UsageError(f"invalid duration {text!r} for {option}", remedy="use a duration such as 20s, 1m30s or 7d")
    return read


def complete_targets(context: CompletionContext) -> list[tuple[str, str]]:
    """Completions for a target: clusters and namespaces."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = [(f"ns/{namespace['metadata']['name']}", "Namespace") for namespace in await client.list(NAMESPACES)]
        for resource in (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS):
            with suppress(ApiError):  # the CRD may not be installed
                found += [
                    (f"cluster/{item['metadata']['name']}", resource.kind) for item in await client.list(resource)
                ]
        return sorted(found)

    return teardowns.complete(context, ask)


Target = Annotated[
    str,
    Parameter(
        name="TARGET",
        completer=complete_targets,
        help="A cluster (cluster/NAME, or NAME), clusterprofile/NAME, profile/NAME, ns/NAME, crd/NAME, any KIND/NAME,"
        " or a Helm release (release/NAME).",
    ),
]
Place = Annotated[
    str | None, Parameter(name=["--namespace", "-n"], help="The namespace of the target; default: that of the context.")
]
Home = Annotated[InstalledNamespace, Parameter(name="--unwind-namespace")]
Volumes = Annotated[
    Literal["Delete", "Retain"],
    Parameter(
        help="Policy for the volume claims of deleted StatefulSets: Retain keeps those that the StatefulSet does not"
        " delete itself. Not for clusters and profiles: annotate the profile, or the Work, with unwind.dev/volumes."
    ),
]


def check_volumes(seen: Foreseen, volumes: Literal["Delete", "Retain"]) -> None:
    """Raise UsageError if --volumes does not apply to this target."""
    if volumes != VolumePolicy.RETAIN.value and not seen.requested:
        raise UsageError(
            f"--volumes does not apply to {seen.title}",
            remedy=f"annotate its profiles or Works with {VOLUMES_ANNOTATION}: {volumes}",
        )


async def resolve_target(
    client: Client, discovery: Discovery, text: str, *, namespace: str | None, otherwise: str = "default"
) -> Named:
    """The object that TARGET refers to. Only clusters are looked up; for others, existence is not checked.

    `cluster/NAME` matches a cluster of Cluster API, Sveltos or Karmada, in any namespace unless one is given.
    `otherwise`: the namespace of other objects if none is given.
    """
    kind, slash, name = text.strip().partition("/")
    if not slash:
        kind, name = _CLUSTERS[0], kind
    if not kind or not name:
        raise UsageError(f"invalid target {text!r}", remedy="use KIND/NAME, such as cluster/prod-7 or ns/shop")
    if kind.lower() in _CLUSTERS:
        return await _cluster(client, discovery, name, namespace)
    return await api_discovery.resolve(discovery, text, namespace=namespace or otherwise)


async def _cluster(client: Client, discovery: Discovery, name: str, namespace: str | None) -> Named:
    try:
        found = (await cluster_lookup.find_cluster(client, discovery, f"{namespace}/{name}" if namespace else name)).ref
    except UnwindError as error:
        if error.remedy:
            remedy = "set the namespace with -n, or the kind: clusters.cluster.x-k8s.io/NAME, sveltoscluster/NAME"
            raise UnwindError(error.what, remedy=remedy) from error
        raise
    resource = await discovery.resource(found.kind, group=found.group)
    return Named(resource=resource, name=found.name, namespace=found.namespace)
