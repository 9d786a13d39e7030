"""Computes the deletion policy of an object from its annotations, its namespace and the default (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Unknown
from unwind.api.names import DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION
from unwind.api.policies import DeletePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANNOTATIONS = (DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION)
# If two annotations of one object disagree, the one that keeps more wins.
_KEEPING = (DeletePolicy.SKIP, DeletePolicy.DETACH_ON_DELETE, DeletePolicy.MANAGE)


class Ruling(msgspec.Struct, frozen=True):
    """A deletion policy, and what set it."""

    policy: DeletePolicy | Unknown
    by: str


def ruling(
    annotations: Mapping[str, str],
    *,
    namespace: Mapping[str, str] | None = None,
    default: DeletePolicy | Unknown | None = None,
) -> Ruling:
    """The policy for an object with these annotations, in a namespace with those.

    The object's annotations take precedence over its namespace's, then the default. An unknown value at any of these
    levels is returned as is: it blocks deletion.
    """
    for said, by in ((annotations, "the annotation {}"), (namespace or {}, "the annotation {} of its namespace")):
        words = {name: DeletePolicy.read(said[name]) for name in _ANNOTATIONS if name in said}
        for name, word in words.items():
            if isinstance(word, Unknown):
                return Ruling(word, by.format(name))
        for policy in _KEEPING:
            for name, word in words.items():
                if word is policy:
                    return Ruling(policy, by.format(name))
    return Ruling(default if default is not None else DeletePolicy.MANAGE, "the manager's default")
