"""Ends a service that cannot continue with one line in the format of its log, and an exit status.

The line's message begins with ``error: ``, and ``baton up`` repeats it (``fatal_reason``).
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping

import typer

from telemetry.logs import configure_logging

CANNOT_START = 2
"""The settings, the checkpoint or the port cannot be used; another start would end the same way."""
TRY_AGAIN = 75
"""Something that a start needs is missing for now, such as Redis or free memory (EX_TEMPFAIL of
sysexits.h)."""
FAILED = 1

_LOG_JSON = "BATON_LOG_JSON"
_FATAL = re.compile(r"(?:[\d:.]+ CRITICAL \S+ )?error: (.*)")
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})


def log_fatal(service: str, error: Exception) -> None:
    """Log an error that a user can correct, and its traceback at level debug."""
    log = logging.getLogger(service)
    log.debug("the service ends", exc_info=True)
    log.critical("error: %s", error)


def fatal_reason(line: str) -> str:
    """The reason why a service ends, if ``line`` of its log gives one, in either format; else "".

    >>> fatal_reason("12:00:01.234 CRITICAL prefill error: port: -1 is not between 0 and 65535")
    'port: -1 is not between 0 and 65535'
    """
    if line.startswith("{") and "critical" in line:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            line = record["message"] if record["level"] == "critical" else ""
    found = _FATAL.match(line)
    return found[1] if found else ""


def run_command(
    service: str, main: Callable[..., None], argv: list[str], environ: Mapping[str, str]
) -> int:
    """Run ``main`` with ``argv`` (without the program's name) as its command line; returns the exit
    status. Errors in the command line and uncaught exceptions are logged in the service's format,
    also before ``main`` has configured it."""
    log_json = environ.get(_LOG_JSON, "").strip().lower() in _TRUE or "--log-json" in argv
    configure_logging(service, json=log_json)
    app = typer.Typer(add_completion=False)
    app.command()(main)
    try:
        return app(argv, standalone_mode=False) or 0
    except Exception as error:
        # NOTE: typer brings its own copy of click, whose exceptions it does not export.
        if told := getattr(error, "format_message", None):
            log_fatal(service, ValueError(told()))
            return CANNOT_START
        logging.getLogger(service).critical("error: %r", error, exc_info=True)
        return FAILED
