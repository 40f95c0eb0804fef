"""What a service says that cannot go on, in both formats, and what baton up makes of it."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Annotated

import pytest
import typer

from telemetry.last_words import CANNOT_START, fatal_reason, log_fatal, run_command
from telemetry.logs import configure_logging


def main(
    port: Annotated[int, typer.Option(envvar="BATON_PORT")] = 1,
    log_json: Annotated[bool, typer.Option()] = False,
) -> None:
    """Of a service that likes its port, or not, or has a bug."""
    configure_logging("prefill", json=log_json)
    if port == 2:
        raise RuntimeError("a bug")
    if port < 0:
        log_fatal("prefill", ValueError(f"port: {port} is negative"))
        raise typer.Exit(CANNOT_START)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


ENDS = pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("--port", "-1"), 2, "port: -1 is negative"),
        (("--port", "x"), 2, "Invalid value for '--port'.*"),
        (("--no-such",), 2, "No such option.*"),
        (("--port", "2"), 1, r"RuntimeError\('a bug'\).*"),
    ],
)


@ENDS
def test_the_end_is_one_line_of_the_log(
    args: tuple[str, ...], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("prefill", main, list(args), {}) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"\d\d:\d\d:\d\d\.\d+ CRITICAL prefill error: {reason}", line), line
    assert re.fullmatch(reason, fatal_reason(line))


@ENDS
def test_the_end_is_one_json_object_where_the_log_is(
    args: tuple[str, ...], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("prefill", main, ["--log-json", *args], {}) == code
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["service"]) == ("critical", "prefill")
    assert re.fullmatch(f"error: {reason}", told["message"])
    assert ("exception" in told) == (code == 1)
    assert re.fullmatch(reason, fatal_reason(line))


def test_what_is_refused_before_main_is_json_where_the_environment_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command("prefill", main, ["--port", "x"], {"BATON_LOG_JSON": "True"}) == 2
    assert json.loads(capsys.readouterr().err)["level"] == "critical"


def test_a_service_that_ends_well_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("prefill", main, [], {}) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "line",
    [
        "12:00:01.234 ERROR prefill error: not the last one",
        "prefilled error: 3",
        '{"level": "info", "message": "error: critical"}',
        '{"level": "critical"',
        '{"critical": 1}',
    ],
)
def test_any_other_line_is_no_reason(line: str) -> None:
    assert fatal_reason(line) == ""
