"""`unwind crds`: the kinds that Unwind brings along."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from unwind.api.definitions import groups
from unwind.cli import documents
from unwind.errors import UsageError
from unwind.installing import manifests


def crds(
    *,
    group: Annotated[str | None, Parameter(help="Only the kinds of this API group.")] = None,
    output: Annotated[documents.Format, Parameter(name=["--output", "-o"], help="How to print them.")] = "yaml",
) -> None:
    """Print the CustomResourceDefinitions: `unwind crds | kubectl apply --server-side -f -`."""
    if group is not None and group not in groups():
        raise UsageError(f"--group does not know {group}", remedy=f"it knows {', '.join(groups())}")
    documents.show(manifests.crds(group), output)
