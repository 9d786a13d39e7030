"""`unwind install`: put Unwind into a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unwind.api.rights import HOME, Setting
from unwind.cli import console, documents
from unwind.cli.words import words
from unwind.errors import UsageError
from unwind.installing import install as installing
from unwind.installing.manifests import manifests
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterable

Kubeconfig = Annotated[
    Path | None, Parameter(help="The kubeconfig file; otherwise KUBECONFIG, ~/.kube/config, or the Pod's own.")
]
Context = Annotated[str | None, Parameter(help="The context in it, instead of the current one.")]
Namespace = Annotated[str, Parameter(help="The namespace of Unwind itself.")]


async def install(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = HOME,
    url: Annotated[
        str | None,
        Parameter(help="https://HOST:PORT of a manager that runs outside the cluster; it is called there."),
    ] = None,
    namespace_selector: Annotated[
        str,
        Parameter(help="Labels (a=b,c=d) of the namespaces whose clusters Cluster API asks about; otherwise all."),
    ] = "",
    hook_setting: Annotated[
        list[str] | None,
        Parameter(negative="", help="What rules at hooks go by, as key=value; may be given repeatedly."),
    ] = None,
    inject_ca_from_secret: Annotated[
        bool,
        Parameter(negative="", help="Have Cluster API read the authority from the manager's Secret by itself."),
    ] = False,
    authorized_groups: Annotated[
        str | None,
        Parameter(
            help="The API groups, separated by commas, that the manager may read to count what there is of a CRD"
            " before it may be deleted; all if unset."
        ),
    ] = None,
    adopt_crds: Annotated[
        bool, Parameter(negative="", help="Add the fields that are missing to CRDs that something else installed.")
    ] = False,
    rotate_path: Annotated[
        bool,
        Parameter(
            negative="",
            help="Replace the secret segments of the webhook and hook paths; the old ones are accepted for 10 minutes.",
        ),
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would be applied; no cluster is asked.")] = False,
    output: Annotated[documents.Format | None, Parameter(name=["--output", "-o"], help="How to print it.")] = None,
) -> None:
    """Put namespace, CRDs and rights into a cluster, or bring them up to date.

    It refuses where another system's own controller is alive, and leaves alone what something else installed.
    """
    setting = Setting(
        namespace=namespace,
        url=url,
        namespace_selector=pairs("--namespace-selector", filter(None, namespace_selector.split(","))),
        hook_settings=pairs("--hook-setting", hook_setting or ()),
        inject_ca=inject_ca_from_secret,
        authorized_groups=None if authorized_groups is None else tuple(words(authorized_groups)),
    )
    if dry_run:
        documents.show(manifests(setting), output or "yaml")
        return
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-install") as client:
        done = await installing.install(
            client, setting, adopt_crds=adopt_crds, rotate_path=rotate_path, announce=_announce, warn=_warn
        )
    if output:
        documents.show([msgspec.to_builtins(one) for one in done], output)
        return
    counts = Counter(one.result.value for one in done)
    console.out.print(", ".join(f"{word} {count}" for word, count in counts.items()))


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """What an option says as key=value, several times."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option}: {text!r} says nothing", remedy="write key=value")
        found[key.strip()] = value.strip()
    return found


def _announce(line: str) -> None:
    # Names of fields have brackets, which are no markup.
    console.err.print(line, markup=False)


def _warn(line: str) -> None:
    console.err.print(f"warning: {line}", style="yellow", markup=False)
