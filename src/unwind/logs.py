"""Structured logging: console format on a terminal, JSON lines elsewhere.

    log = logs.get(__name__)
    log.info("step completed", cluster="default/prod-7", teardown=uid, step="ClusterSummary/ingress")

Common fields have the same keys in every module, so that one search finds all lines of a teardown:
`cluster`, `teardown`, `step`, `object` (Kind/namespace/name) and `uid`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

Format = Literal["auto", "json", "console"]
KEYS = ("cluster", "teardown", "step", "object", "uid")


def _to_stderr(*_: object) -> WrappedLogger:
    return structlog.PrintLogger(file=sys.stderr)


if not structlog.is_configured():
    # Commands do not call `setup`, and print their results to standard output.
    structlog.configure(logger_factory=_to_stderr)


def get(name: str) -> FilteringBoundLogger:
    """The logger of a module."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))


def setup(form: Format = "auto", *, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Configure logging, including that of libraries, to one stream (default: standard error) and format."""
    stream = stream or sys.stderr
    readable = form == "console" or (form == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]
    ending: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="time", sort_keys=False)]
        if readable
        else [structlog.processors.dict_tracebacks, _ordered, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _ordered(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put the most important fields first."""
    first = ("time", "level", "event", *KEYS)
    return {key: event[key] for key in first if key in event} | {
        key: value for key, value in event.items() if key not in first
    }
