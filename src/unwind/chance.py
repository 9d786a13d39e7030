"""Chance, for back-off: one for the process. Each holds two and a half kilobytes, and thousands may try at once."""

from __future__ import annotations

import random

CHANCE = random.Random()  # noqa: S311 - no secret in it
