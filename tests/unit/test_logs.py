"""The log is one JSON object a line for machines and readable for people; libraries' lines look the same."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from unwind import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_what_a_line_is_about_comes_first_and_under_fixed_keys() -> None:
    stream = io.StringIO()
    logs.setup("auto", stream=stream)
    logs.get("unwind.test").info("step done", seconds=1.5, step="ClusterSummary/a", cluster="default/prod", uid="u")
    logging.getLogger("somebody.else").warning("odd: %s", 3)
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert list(ours)[:6] == ["time", "level", "event", "cluster", "step", "uid"]
    assert (ours["logger"], ours["seconds"], ours["level"]) == ("unwind.test", 1.5, "info")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("odd: 3", "warning", "somebody.else")


def test_a_failure_stays_one_line_for_machines() -> None:
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    try:
        raise ValueError("what happened")
    except ValueError as error:
        logs.get("unwind.test").error("request handler failed", exc_info=error)
    [line] = stream.getvalue().splitlines()
    assert "what happened" in json.dumps(json.loads(line)["exception"])


def test_people_get_lines_that_they_can_read() -> None:
    stream = io.StringIO()
    logs.setup("console", stream=stream)
    logs.get("unwind.test").info("step done", cluster="default/prod")
    assert "step done" in stream.getvalue()
    assert "cluster=default/prod" in stream.getvalue()
    assert "{" not in stream.getvalue()


def test_what_is_not_important_is_left_out() -> None:
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    logs.get("unwind.test").debug("nobody wants to know")
    assert stream.getvalue() == ""


def test_log_entries_of_commands_are_not_among_their_output() -> None:
    code = "from unwind import logs; logs.get('unwind.test').warning('kubeconfig not usable')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert "kubeconfig not usable" in done.stderr
