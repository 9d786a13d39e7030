"""What all tests share: one real control plane a session."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from unwind.local.home import Shape

# Who starts the tests in the background has Ctrl-C ignored in all that they start; some tests are about Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` tries the same examples every time: a failure there is caused by a change. `make soak` runs the property
# tests with `--hypothesis-profile=long`: many more examples, new ones each time. A busy machine is no failure.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=5_000, deadline=None)
settings.load_profile("fixed")

pytest_plugins = ["unwind.testing.plugin"]


@pytest.fixture(scope="session")
def plane_shape() -> Shape:
    return Shape(members=1, nodes=True, capi=True, cloud=True, cloud_delay=0.5)
