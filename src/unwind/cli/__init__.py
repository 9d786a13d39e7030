"""The command line: `unwind …`, which is also `kubectl unwind …`."""

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

EXIT_CODES = "Exit codes: 0 done; 1 refused or failed; 2 not understood; 3 timed out."


def app(asked: Sequence[str] = ()) -> App:
    """The command line with all its commands; each is imported when it is called. `asked`: what was typed, for help."""
    called = Path(sys.argv[0]).name
    unwind = App(
        name="kubectl unwind" if called.startswith("kubectl") else "unwind",
        help="Take Kubernetes clusters, add-ons and resources apart: in the right order, with nothing left behind.",
        version=lambda: version("kube-unwind"),
        version_flags=["--version"],
        # Whole sentences are set anew to the width of the window; the bare list need not wait for what does that.
        help_format="plaintext" if not asked or asked[0].startswith("-") else "markdown",
        help_epilogue=EXIT_CODES,
    )

    def command(where: str, *, name: str, help: str) -> None:  # noqa: A002 - as cyclopts calls it
        # On the list of all it has one line, for which it need not be imported; by itself it says all that it has to.
        unwind.command(where, name=name, help=None if name in asked[:1] else help)

    command("unwind.cli.demo:demo", name="demo", help="Show on this machine what Unwind does.")
    command("unwind.cli.install:install", name="install", help="Put Unwind into a cluster.")
    command("unwind.cli.uninstall:uninstall", name="uninstall", help="Take Unwind out of a cluster.")
    command("unwind.cli.run:run", name="run", help="Run the manager: controllers, webhooks and hooks.")
    command("unwind.cli.join:join", name="join", help="Have a cluster become a member.")
    command("unwind.cli.unjoin:unjoin", name="unjoin", help="Have a member leave, as its removeStrategy says.")
    command("unwind.cli.plan:plan", name="plan", help="Show what would go, in which order, and what with it.")
    command("unwind.cli.delete:delete", name="delete", help="Have something deleted, with all that hangs on it.")
    command("unwind.cli.why:why", name="why", help="Say why an object is still there, and what to do.")
    command("unwind.cli.status:status", name="status", help="Show how far deletions are, and what they wait for.")
    command("unwind.cli.ledger:ledger", name="ledger", help="Show what was left behind, and who decided it.")
    command("unwind.cli.release:release", name="release", help="Let a cluster go that is held, for the record.")
    command("unwind.cli.protect:protect", name="protect", help="Have an object not be deleted.")
    command("unwind.cli.protect:unprotect", name="unprotect", help="Let a protected object be deleted again.")
    command("unwind.cli.deleters:deleters", name="deleters", help="Show what deletions go through.")
    command("unwind.cli.hooks:hooks", name="hooks", help="Show what clusters wait for at Cluster API's hooks.")
    command("unwind.cli.crds:crds", name="crds", help="Print the kinds that Unwind brings along.")
    command("unwind.cli.local:local", name="local", help="A real control plane on this machine.")
    command("unwind.cli.completion:completion", name="completion", help="Have a shell complete all this.")
    command("unwind.cli.version:version", name="version", help="Show the versions of what runs where.")
    return unwind


def main() -> None:
    """Run one command; what a person has to know is one line on standard error."""
    signal.signal(signal.SIGTERM, _end)
    try:
        # What cyclopts prints by itself is a box of several lines, and for an unknown command it imports all others.
        app(sys.argv[1:])(exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"unwind: {_misused(error)}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except UnwindError as error:
        print(f"unwind: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(141)  # whoever read our output has had enough, as `head` does


def _misused(error: CycloptsError) -> str:
    """What is wrong with a command line, on one line, with the way to what would be right."""
    called = " ".join(("unwind", *(error.command_chain or ())))
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        said = f"there is no command {error.unused_tokens[0]!r}"
        near = get_close_matches(error.unused_tokens[0], list(error.app or ()), n=1)
        said += f" (is it {near[0]!r}?)" if near else ""
    else:
        said = " ".join(str(error).split()).removesuffix(".")
    return f"{said}: see `{called} --help`"


def _end(_: int, frame: FrameType | None) -> None:
    """Told to end, do what is done on Ctrl-C: take back what was begun."""
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):
        interrupt(signal.SIGINT, frame)
        return
    # Ctrl-C is ignored, as it is in what a script has started in the background; the word to end is not.
    raise KeyboardInterrupt
