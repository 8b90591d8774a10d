"""Logs of all roles, the same fields everywhere. Knows no role.

Lines go to stderr: standard output belongs to what a command has to say.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog
from pydantic import SecretStr

_SECRET_NAMES = ("password", "secret", "token", "api_key", "authorization")


def configure(log_level: str, log_format: Literal["auto", "console", "json"], role: str) -> None:
    """Sets up structlog and the standard library's logging for this process; every line carries `role`.

    `auto` is for people on a terminal and JSON lines otherwise.
    """
    level = logging.getLevelNamesMapping()[log_level.upper()]
    is_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())

    def with_role(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {"role": role, **event}

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_console else "iso", utc=not is_console),
        with_role,
        _hide_secrets,
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if is_console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, SecretStr) or name.lower() in _SECRET_NAMES:
            event[name] = "**********"
    return event
