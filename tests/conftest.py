"""What all tests share: one real control plane a session."""

from __future__ import annotations

import pytest

from unwind.local.home import Shape

pytest_plugins = ["unwind.testing.plugin"]


@pytest.fixture(scope="session")
def plane_shape() -> Shape:
    return Shape(members=1, nodes=True, capi=True, cloud=True, cloud_delay=0.5)
