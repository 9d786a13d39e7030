"""`unwind install`: install or upgrade Unwind in a cluster; `unwind crds`: print its CustomResourceDefinitions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unwind.api import selectors
from unwind.api.crds import api_groups
from unwind.api.features import DEFAULT, Feature, parse, written
from unwind.api.rights import HOME, Setting
from unwind.api.workload import ManagerWorkload
from unwind.cli import console
from unwind.cli.arguments import OUTPUT, Context, Flag, Kubeconfig, Namespace, words
from unwind.errors import UsageError
from unwind.install import install as installing
from unwind.install.manifests import crds as crd_manifests
from unwind.install.manifests import manifests
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.server.manager_names import recorded_features

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import LabelSelector


async def install(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = HOME,
    image: Annotated[
        str | None,
        Parameter(help="The image of the manager: install its Deployment. It registers its hooks when it is ready."),
    ] = None,
    replicas: Annotated[int, Parameter(help="The number of replicas, with --image.")] = 2,
    features: Annotated[
        str | None,
        Parameter(
            env_var="UNWIND_FEATURES",
            help=f"Comma-separated features: {', '.join(Feature)}; default: those that are installed, or"
            f" {written(DEFAULT)}. Features that are not listed are removed.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        Parameter(help="https://HOST:PORT of a manager that runs outside the cluster."),
    ] = None,
    namespace_selector: Annotated[
        str,
        Parameter(
            help="Label selector of the namespaces whose Clusters call the hooks, in the syntax of kubectl:"
            " a=b,c!=d,e in (f,g),h,!i; default: all namespaces."
        ),
    ] = "",
    hook_setting: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting for hook rules, as key=value; may be repeated."),
    ] = None,
    inject_ca_from_secret: Annotated[
        Flag, Parameter(help="Let Cluster API inject the CA bundle from the manager's Secret.")
    ] = False,
    authorized_groups: Annotated[
        str | None,
        Parameter(
            help="Comma-separated API groups that the manager may read to count the custom resources of a CRD"
            " before the CRD is deleted; default: all groups."
        ),
    ] = None,
    adopt_crds: Annotated[Flag, Parameter(help="Add missing fields to CRDs that another system installed.")] = False,
    accept_shadowing: Annotated[
        Flag,
        Parameter(
            env_var="UNWIND_ACCEPT_SHADOWING",
            help="Install Karmada's Clusters beside Cluster API's: `kubectl get clusters` then means Karmada's.",
        ),
    ] = False,
    rotate_path: Annotated[
        Flag,
        Parameter(
            help="Replace the secret segments of the webhook and hook paths; the old ones are accepted for 10 minutes."
        ),
    ] = False,
    dry_run: Annotated[Flag, Parameter(help="Print the manifests without contacting a cluster.")] = False,
    output: Annotated[console.DocumentFormat | None, OUTPUT] = None,
) -> None:
    """Install the namespace, CRDs, RBAC rules and policies in a cluster, or upgrade them.

    With --image, the manager runs in the cluster, as with the Helm chart. With --url, it runs elsewhere. Without both,
    install creates a Service for Pods that you create, and registers the hooks at once: start the manager right away.
    Refuses if another controller for the same kinds is running. Does not change objects that another system installed.
    """
    if image and url:
        raise UsageError("--image and --url cannot be used together", remedy="use one of them")
    chosen = None if features is None else parse(features)
    setting = Setting(
        namespace=namespace,
        features=DEFAULT if chosen is None else chosen,
        url=url,
        namespace_selector=_selector(namespace_selector),
        hook_settings=pairs("--hook-setting", hook_setting or ()),
        inject_ca=inject_ca_from_secret,
        authorized_groups=None if authorized_groups is None else tuple(words(authorized_groups)),
        workload=ManagerWorkload(image=image, replicas=replicas) if image else None,
    )
    if dry_run:
        console.show_objects(manifests(setting), output or "yaml")
        return
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-install") as client:
        if chosen is None and (recorded := await recorded_features(client, namespace)) is not None:
            setting = msgspec.structs.replace(setting, features=recorded)
        done = await installing.install(
            client,
            setting,
            adopt_crds=adopt_crds,
            accept_shadowing=accept_shadowing,
            rotate_path=rotate_path,
            announce=_announce,
            warn=_warn,
        )
    if output:
        console.show_objects([msgspec.to_builtins(item) for item in done], output)
        return
    counts = Counter(item.result.value for item in done)
    console.out.print(", ".join(f"{word} {count}" for word, count in counts.items()))


def _selector(text: str) -> LabelSelector:
    try:
        return selectors.parse(text)
    except selectors.InvalidSelectorError as error:
        raise UsageError(
            f"invalid value {text!r} for --namespace-selector: {error}",
            remedy="use the selector syntax of kubectl, such as 'env in (prod,staging),!legacy'",
        ) from None


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """A repeated key=value option as a dictionary."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"invalid value {text!r} for {option}", remedy="use key=value")
        found[key.strip()] = value.strip()
    return found


def _announce(line: str) -> None:
    # Field names may contain brackets, which are not markup.
    console.err.print(line, markup=False)


def _warn(line: str) -> None:
    console.err.print(f"warning: {line}", style="yellow", markup=False)


def crds(
    *,
    group: Annotated[str | None, Parameter(help="Print only the CRDs of this API group.")] = None,
    output: Annotated[console.DocumentFormat, OUTPUT] = "yaml",
) -> None:
    """Print the CustomResourceDefinitions: `unwind crds | kubectl apply --server-side -f -`."""
    if group is not None and group not in api_groups():
        raise UsageError(f"unknown group {group!r} (valid: {', '.join(api_groups())})")
    console.show_objects(crd_manifests(group), output)
