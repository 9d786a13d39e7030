"""The command line `unwind`, also available as `kubectl unwind`: all commands and exit codes."""

from __future__ import annotations

import signal
import sys
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, UnknownCommandError

from unwind.errors import UnwindError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

EXIT_CODES = "Exit codes: 0 success; 1 refused or failed; 2 usage error; 3 timed out."


def app(asked: Sequence[str] = ()) -> App:
    """The App with all commands, each imported when called. `asked`: the arguments, which select the help format."""
    called = Path(sys.argv[0]).name
    unwind = App(
        name="kubectl unwind" if called.startswith("kubectl") else "unwind",
        help="Delete Kubernetes clusters, add-ons and resources in dependency order, with nothing left behind.",
        version=lambda: version("kube-unwind"),
        version_flags=["--version"],
        # Markdown reflows long help to the terminal's width. The command list does without, to avoid the import time.
        help_format="plaintext" if not asked or asked[0].startswith("-") else "markdown",
        help_epilogue=EXIT_CODES,
    )

    def command(where: str, *, name: str, help: str) -> None:  # noqa: A002 - as cyclopts calls it
        # The command list shows one line per command without importing it; `unwind COMMAND --help` shows the docstring.
        unwind.command(where, name=name, help=None if name in asked[:1] else help)

    command("unwind.cli.demo:demo", name="demo", help="Run a demonstration, locally or on an existing cluster.")
    command("unwind.cli.install:install", name="install", help="Install or upgrade Unwind in a cluster.")
    command("unwind.cli.uninstall:uninstall", name="uninstall", help="Remove Unwind from a cluster.")
    command("unwind.cli.run:run", name="run", help="Run the manager: controllers, webhooks and hooks.")
    command("unwind.cli.join:join", name="join", help="Join a cluster as a member.")
    command("unwind.cli.unjoin:unjoin", name="unjoin", help="Unjoin a member cluster according to its removeStrategy.")
    command("unwind.cli.plan:plan", name="plan", help="Preview what a deletion would remove, in order.")
    command("unwind.cli.delete:delete", name="delete", help="Delete an object and its dependents, in order.")
    command(
        "unwind.cli.cancel:cancel", name="cancel", help="Cancel a requested deletion, and show what is gone already."
    )
    command("unwind.cli.why:why", name="why", help="Explain why an object is not deleted, and what to do.")
    command("unwind.cli.status:status", name="status", help="Show the progress of teardowns and what blocks them.")
    command(
        "unwind.cli.ledger:ledger",
        name="ledger",
        help="List objects that were left behind, why, and by whose decision.",
    )
    command(
        "unwind.cli.release:release",
        name="release",
        help="Force-release a blocked cluster and record what is left behind.",
    )
    command("unwind.dashboard.command:dashboard", name="dashboard", help="Show all of this as a web page.")
    command("unwind.cli.protect:protect", name="protect", help="Protect an object from deletion.")
    command("unwind.cli.protect:unprotect", name="unprotect", help="Remove the deletion protection of an object.")
    command("unwind.cli.deleters:deleters", name="deleters", help="List the deleters and their order.")
    command("unwind.cli.hooks:hooks", name="hooks", help="List Cluster API lifecycle hooks and the rules on each.")
    command("unwind.cli.install:crds", name="crds", help="Print the CustomResourceDefinitions of Unwind.")
    command("unwind.cli.local:local", name="local", help="Manage control planes on this machine.")
    command("unwind.cli.completion:completion", name="completion", help="Print a shell completion script.")
    command(
        "unwind.cli.version:version",
        name="version",
        help="Show the versions of the client, the managers and the cluster.",
    )
    return unwind


def main() -> None:
    """Run one command; an error is printed as one line on standard error."""
    signal.signal(signal.SIGTERM, _end)
    try:
        # cyclopts' own error output is a box of several lines, and for an unknown command it imports all others.
        app(sys.argv[1:])(exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"unwind: {_misused(error)}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except UnwindError as error:
        print(f"unwind: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(141)  # the reader closed the pipe, as `head` does


def _misused(error: CycloptsError) -> str:
    """A usage error as one line, with the --help command to run."""
    called = " ".join(("unwind", *(error.command_chain or ())))
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        said = f"unknown command {error.unused_tokens[0]!r}"
        near = get_close_matches(error.unused_tokens[0], list(error.app or ()), n=1)
        said += f" (did you mean {near[0]!r}?)" if near else ""
    else:
        said = " ".join(str(error).split()).removesuffix(".")
    return f"{said}; see `{called} --help`"


def _end(_: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, so that commands undo what they started."""
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):
        interrupt(signal.SIGINT, frame)
        return
    # SIGINT is ignored in processes that a script starts in the background; SIGTERM must still end them.
    raise KeyboardInterrupt
