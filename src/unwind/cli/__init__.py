"""The command line: `unwind …`, which is also `kubectl unwind …`."""

from __future__ import annotations

import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from types import FrameType


def app() -> App:
    """The command line with all its commands; each is imported when it is called."""
    called = Path(sys.argv[0]).name
    unwind = App(
        name="kubectl unwind" if called.startswith("kubectl") else "unwind",
        help="Take Kubernetes clusters, add-ons and resources apart: in the right order, with nothing left behind.",
        version=lambda: version("kube-unwind"),
        version_flags=["--version"],
        help_format="plaintext",
    )
    unwind.command("unwind.cli.install:install", name="install", help="Put Unwind into a cluster.")
    unwind.command("unwind.cli.uninstall:uninstall", name="uninstall", help="Take Unwind out of a cluster.")
    unwind.command("unwind.cli.run:run", name="run", help="Run the manager: controllers, webhooks and hooks.")
    unwind.command("unwind.cli.deleters:deleters", name="deleters", help="Show what deletions go through.")
    unwind.command("unwind.cli.hooks:hooks", name="hooks", help="Show what clusters wait for at Cluster API's hooks.")
    unwind.command("unwind.cli.crds:crds", name="crds", help="Print the kinds that Unwind brings along.")
    unwind.command("unwind.cli.local:local", name="local", help="A real control plane on this machine.")
    return unwind


def main() -> None:
    """Run one command; what a person has to know is one line on standard error."""
    signal.signal(signal.SIGTERM, _end)
    try:
        app()()
    except UnwindError as error:
        print(f"unwind: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)  # whoever read our output has had enough, as `head` does


def _end(_: int, frame: FrameType | None) -> None:
    """Told to end, do what is done on Ctrl-C: take back what was begun."""
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):
        interrupt(signal.SIGINT, frame)
        return
    # Ctrl-C is ignored, as it is in what a script has started in the background; the word to end is not.
    raise KeyboardInterrupt
