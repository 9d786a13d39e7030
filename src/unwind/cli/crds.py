"""`unwind crds`: print the CustomResourceDefinitions."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from unwind.api.crds import groups
from unwind.cli import documents
from unwind.errors import UsageError
from unwind.install import manifests


def crds(
    *,
    group: Annotated[str | None, Parameter(help="Print only the CRDs of this API group.")] = None,
    output: Annotated[documents.Format, Parameter(name=["--output", "-o"], help="Output format.")] = "yaml",
) -> None:
    """Print the CustomResourceDefinitions: `unwind crds | kubectl apply --server-side -f -`."""
    if group is not None and group not in groups():
        raise UsageError(f"unknown group {group!r} (valid: {', '.join(groups())})")
    documents.show(manifests.crds(group), output)
