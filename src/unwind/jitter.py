"""The random source for backoff jitter, shared by the process: each takes 2.5 KB, and thousands of retries may run."""

from __future__ import annotations

import random

JITTER = random.Random()  # noqa: S311 - no secret in it
