"""What all tests share: one real control plane a session."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import settings

from image import build, helm
from tests.namespaces import leave_namespace
from tests.plane.support.helm_steps import serving
from tests.workers import workers_here
from unwind.api.features import ALL, COMPANIONS
from unwind.kube.informers import Informer
from unwind.local.home import Shape
from unwind.testing import managers, used_rights
from unwind.testing.managers import is_administrator, remove_rights
from unwind.testing.namespaces import new_namespace
from unwind.testing.used_rights import UsedRight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from _pytest.terminal import TerminalReporter

    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

# Who starts the tests in the background has Ctrl-C ignored in all that they start; some tests are about Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The programs of the planes share few cores: with one thread each, and less garbage collection, the same requests take
# a sixth less CPU time. An API server that has run many tests collects more often instead of using more memory.
for name, value in (("GOMAXPROCS", "1"), ("GOGC", "400"), ("GOMEMLIMIT", "1GiB")):
    os.environ.setdefault(name, value)

# `make test` tries the same examples every time: a failure there is caused by a change. `make soak` runs the property
# tests with `--hypothesis-profile=long`: many more examples, new ones each time. A busy machine is no failure.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=5_000, deadline=None)
settings.load_profile("fixed")

pytest_plugins = ["unwind.testing.plugin", "tests.companion_fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unused-rights", action="store_true", help="report rights that no manager of this run has used")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The number of workers of `-n auto`."""
    return workers_here()


def pytest_collection_finish() -> None:
    """Keep what was imported and collected, about a million objects, out of every later garbage collection."""
    gc.freeze()


# Rights that are granted must be used. The audit log of each plane is read at its end, in the process that has it.


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the rights that a worker has seen in use."""
    managers.used.update(UsedRight(*right) for right in getattr(node, "workeroutput", {}).get(_USED, ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of all tests if a right was granted that no manager has used: it can be taken away."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput[_USED] = [list(right) for right in managers.used]
    elif not session.exitstatus and _is_whole(config) and used_rights.unused(_CHECKED, managers.used):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    report = config.getoption("--unused-rights")
    found = used_rights.unused(ALL if report else _CHECKED, managers.used)
    if report or (_is_whole(config) and found):
        terminalreporter.section("rights that were granted and never used")
        for line in found:
            terminalreporter.line(line)
        terminalreporter.line(
            "In a run of all tests: remove them, or add them to RARELY_USED in unwind.testing.used_rights"
        )


_USED = "used_rights"
# Without the companions, whose rights were not compared with their tests yet. `--unused-rights` shows them.
_CHECKED = ALL - COMPANIONS


def _is_whole(config: pytest.Config) -> bool:
    """Whether this run has all tests that use rights: those of the image need root and apt."""
    chosen = config.option
    narrowed = (
        chosen.keyword
        or chosen.markexpr != "not soak"
        or getattr(chosen, "lf", False)
        or chosen.deselect
        or chosen.ignore
    )
    everything = [str(Path(name).resolve()) for name in config.args] == [str(Path(__file__).parent)]
    return everything and not narrowed and os.geteuid() == 0 and shutil.which("apt-get") is not None


@pytest.fixture(scope="session")
def plane_shape() -> Shape:
    return Shape(members=1, nodes=True, capi=True, cloud=True, cloud_delay=0.5)


@pytest.fixture(scope="session")
def image() -> build.Image:
    """The container image of this source tree, for this machine; from the cache, if it has been built."""
    if not shutil.which("apt-get"):
        pytest.skip("the image is built from Debian packages, and apt is not installed")
    return build.ensure(helm.native())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def repository() -> AsyncIterator[ChartRepository]:
    """A server with the charts of `helm_steps`."""
    async with serving() as repository:
        yield repository


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(plane: Plane) -> AsyncIterator[str]:
    """A namespace of the management cluster for one test."""
    name = await new_namespace(plane)
    yield name
    await remove_rights(plane.management.client, name)
    await leave_namespace(plane.management.client, name)


# Tests of the machinery itself, which need no manager: deleters act on a member, and here the plane is one.
_MACHINERY = tuple(f"tests/plane/test_{name}.py" for name in ("informers", "watches", "deletions", "patterns"))


@pytest.fixture(scope="session", autouse=True)
def managers_are_not_administrators() -> Iterator[None]:
    """Fail at the end if a manager in this process followed the management cluster with all rights.

    All controllers go by informers. The audit log cannot tell such a manager from a test's own requests.
    """
    run, found = Informer.run, set[str]()

    async def noted(self: Informer[object]) -> None:
        # A command that a person runs (`unwind delete`) has another user agent, and the rights of that person.
        by_manager = self._client._user_agent in ("unwind", "unwind-manager")
        if by_manager and is_administrator(self._client.connection, "management"):
            found.add(os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0])
        await run(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Informer, "run", noted)
        yield
    wrong = sorted(item for item in found if not item.startswith(_MACHINERY))
    assert not wrong, f"managers ran with all rights in: {', '.join(wrong)}; use unwind.testing.managers"
