"""Whether a thing is to be deleted at all, as its annotations say, or its namespace's, or the process (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Unknown
from unwind.api.names import DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION
from unwind.api.policies import DeletePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANNOTATIONS = (DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION)
# Where two annotations of one object disagree, the one that keeps more holds.
_KEEPING = (DeletePolicy.SKIP, DeletePolicy.DETACH_ON_DELETE, DeletePolicy.MANAGE)


class Ruling(msgspec.Struct, frozen=True):
    """A policy, and who says so."""

    policy: DeletePolicy | Unknown
    by: str


def ruling(
    annotations: Mapping[str, str],
    *,
    namespace: Mapping[str, str] | None = None,
    default: DeletePolicy | Unknown | None = None,
) -> Ruling:
    """What holds for an object with these annotations, in a namespace with those.

    The object's own come first, then its namespace's, then the default. A word that is not known, wherever it has a
    say, is the answer: it holds.
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
    return Ruling(default if default is not None else DeletePolicy.MANAGE, "the default of this process")
