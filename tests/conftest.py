"""What all tests share: one real control plane a session."""

from __future__ import annotations

import signal

import pytest

from unwind.local.home import Shape

# Who starts the tests in the background has Ctrl-C ignored in all that they start; some tests are about Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["unwind.testing.plugin"]


@pytest.fixture(scope="session")
def plane_shape() -> Shape:
    return Shape(members=1, nodes=True, capi=True, cloud=True, cloud_delay=0.5)
