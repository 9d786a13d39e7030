"""Which gate holds the deletion of a cluster, by the TeardownPolicies that select it (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Unknown
from unwind.api.names import NO_CLUSTER_CLASS
from unwind.api.policies import OnDelete
from unwind.api.unwind import Gate
from unwind.companions.policy_merge import unknown_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.policies import TeardownPolicy

# The strictest first. It can only be Auto if no policy says more, so its place decides only about the message.
_STRICTNESS = (Gate.ADMISSION, Gate.MACHINES, Gate.HOOK, Gate.AUTO, Gate.NONE)


class EffectiveGate(msgspec.Struct, frozen=True, kw_only=True):
    """The gate of a cluster, and why it has this one."""

    kind: Gate | Unknown
    """Hook, Machines, Admission or None. Unknown: a policy has an unknown value; nothing is armed, nothing disarmed."""
    why: str
    asked: bool
    """Whether a policy asks for a gate: None was not chosen."""
    conflict: str = ""
    """Policies that choose different gates; empty if they agree. The strictest counts."""


def effective_gate(policies: Sequence[TeardownPolicy], *, has_class: bool) -> EffectiveGate:
    """The gate of a cluster that these policies select, which must be at least one: the strictest of all.

    `has_class`: Cluster API calls the hook for the cluster, whatever the policies say.
    """
    words = {policy.metadata.name: Gate.read(policy.spec.gate) for policy in policies}
    for name, word in words.items():
        if isinstance(word, Unknown):
            return EffectiveGate(kind=word, why=f"TeardownPolicy {name}: gate {word}", asked=True)
    chosen = next(gate for gate in _STRICTNESS if gate in words.values())
    by = f"TeardownPolicy {', '.join(sorted(name for name, word in words.items() if word is chosen))} says {chosen}"
    # Auto gives way to every other word: it is no wish of its own.
    others = {name: word for name, word in words.items() if word not in (chosen, Gate.AUTO)}
    conflict = ""
    if others and chosen is not Gate.AUTO:
        said = ", ".join(f"{name} says {word}" for name, word in sorted(others.items()))
        conflict = f"{by} and {said}: {chosen} counts"
    kind, why = chosen, conflict or by
    if chosen not in (Gate.MACHINES, Gate.ADMISSION):
        kind = Gate.HOOK if has_class else Gate.NONE
        why = f"{why}; {'Cluster API calls the hook' if has_class else NO_CLUSTER_CLASS}"
    return EffectiveGate(kind=kind, why=why, asked=chosen is not Gate.NONE, conflict=conflict)


def requesting(policies: Iterable[TeardownPolicy]) -> tuple[str, ...]:
    """The policies by which a DELETE of a cluster that they select starts its teardown: all that say `gate: Admission`
    must say so, and all values must be known. Empty: it is refused, or has another gate."""
    found = list(policies)
    chosen = [policy for policy in found if policy.spec.gate == Gate.ADMISSION]
    agreed = all(policy.spec.admission and policy.spec.admission.on_delete == OnDelete.REQUEST for policy in chosen)
    if not agreed or any(map(unknown_words, found)):
        return ()
    return tuple(policy.metadata.name for policy in chosen)
