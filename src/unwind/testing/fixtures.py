"""Pytest fixtures for deleters: put `pytest_plugins = ["unwind.testing.fixtures"]` into a conftest.py.

No control plane is needed for them; those who want one have `unwind.testing.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from unwind.testing.clock import StillClock
from unwind.testing.contexts import context

if TYPE_CHECKING:
    from unwind.deleting.context import DeleteContext
    from unwind.kube.client import Object


class Deleting(Protocol):
    """Makes contexts: `unwind.testing.context`, with the clock of the test."""

    def __call__(self, obj: Object, **more: Any) -> DeleteContext:
        """What a deleter of this object is given."""


@pytest.fixture
def still_clock() -> StillClock:
    """A clock that stands still until it is told to go on."""
    return StillClock()


@pytest.fixture
def deleting(still_clock: StillClock) -> Deleting:
    """What a deleter is given: `deleting(obj)`. It goes by `still_clock`."""

    def given(obj: Object, **more: Any) -> DeleteContext:
        return context(obj, **{"clock": still_clock, **more})

    return given
