"""Test support: fakes and proofs for deleters, and fixtures on a real control plane (`unwind.testing.plugin`)."""

from __future__ import annotations

from unwind.testing.clock import StillClock
from unwind.testing.contexts import context, memo
from unwind.testing.crashes import Life
from unwind.testing.objects import Objects
from unwind.testing.proofs import Proof, World, prove_idempotent, prove_patient
from unwind.testing.scripts import Script, checkpoint, interruptible

__all__ = [
    "Life",
    "Objects",
    "Proof",
    "Script",
    "StillClock",
    "World",
    "checkpoint",
    "context",
    "interruptible",
    "memo",
    "prove_idempotent",
    "prove_patient",
]
