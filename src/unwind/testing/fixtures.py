"""Pytest fixtures for deleters: add `pytest_plugins = ["unwind.testing.fixtures"]` to a conftest.py.

They need no control plane; `unwind.testing.plugin` has fixtures with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from unwind.testing.clock import StillClock
from unwind.testing.contexts import context

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext
    from unwind.kube.client import Object


class Deleting(Protocol):
    """Creates contexts: `unwind.testing.context`, with the clock of the test."""

    def __call__(self, obj: Object, **more: Any) -> DeleteContext:
        """The context for a deleter of this object."""


@pytest.fixture
def still_clock() -> StillClock:
    """A clock that stands still until it is advanced."""
    return StillClock()


@pytest.fixture
def deleting(still_clock: StillClock) -> Deleting:
    """Creates the context of a deleter: `deleting(obj)`. It uses `still_clock`."""

    def given(obj: Object, **more: Any) -> DeleteContext:
        return context(obj, **{"clock": still_clock, **more})

    return given
