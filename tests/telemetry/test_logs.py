"""Log lines: one each, the request id bound, nothing secret."""

import asyncio
import io
import json
import logging
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.logs import bind_request, configure_logging
from tests.small_disk import fill, small_disk

log = logging.getLogger("test.logs")


@pytest.fixture
def configure() -> Iterator[Callable[..., io.StringIO]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def start(**settings: object) -> io.StringIO:
        stream = io.StringIO()
        configure_logging("coordinator", stream=stream, **settings)  # type: ignore[arg-type]
        return stream

    yield start
    root.handlers[:] = handlers
    root.setLevel(level)


def test_fields_follow_the_message(configure: Callable[..., io.StringIO]) -> None:
    stream = configure()
    with bind_request("r-1"):
        log.info("placed", extra={"worker": "p0", "attempt": 2, "took_s": 0.25})
    assert stream.getvalue().endswith(
        " INFO coordinator placed http_id=r-1 worker=p0 attempt=2 took_s=0.25\n"
    )


def test_a_value_cannot_forge_a_line_or_a_field(configure: Callable[..., io.StringIO]) -> None:
    stream = configure()
    log.info("a\nb %s", "c\r", extra={"x": "1 y=2\nERROR"})
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith('a\\nb c\\r x="1 y=2\\nERROR"\n')
    log.info("é \x9b31m \u2028")
    assert stream.getvalue().endswith(" é \\u009b31m \\u2028\n"), "no command for a terminal"


def test_json_lines_parse(configure: Callable[..., io.StringIO]) -> None:
    stream = configure(json=True)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed", extra={"n": 1})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["service"], line["message"], line["n"]) == (
        "error", "coordinator", "failed", 1,
    )  # fmt: skip
    assert "RuntimeError: boom" in line["exception"]


def test_an_exception_stays_on_its_line(configure: Callable[..., io.StringIO]) -> None:
    stream = configure()
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")
    assert stream.getvalue().count("\n") == 1


def test_secrets_are_masked(configure: Callable[..., io.StringIO]) -> None:
    stream = configure()
    log.info("redis://user:hunter2@host/0", extra={"api_key": "sk-1", "url": "a://b:hunter2@c"})
    assert "hunter2" not in stream.getvalue()
    assert "sk-1" not in stream.getvalue()


async def test_tasks_keep_the_request_they_were_started_for(
    configure: Callable[..., io.StringIO],
) -> None:
    stream = configure()

    async def work() -> None:
        await asyncio.sleep(0)
        log.info("working")

    with bind_request("r-1"):
        first = asyncio.create_task(work())
    with bind_request("r-2"):
        second = asyncio.create_task(work())
    await asyncio.gather(first, second)
    log.info("outside")
    ids = [line.partition("http_id=")[2] for line in stream.getvalue().splitlines()]
    assert ids == ["r-1", "r-2", ""]


def test_the_level_filters_and_a_wrong_one_is_named(
    configure: Callable[..., io.StringIO],
) -> None:
    stream = configure(level="warning")
    log.info("quiet")
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="log level"):
        configure(level="loud")


def test_a_service_whose_log_cannot_be_written_goes_on(
    configure: Callable[..., io.StringIO], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure()
    with small_disk(tmp_path / "disk", "64k") as disk, (disk / "log").open("w") as stream:
        configure_logging("prefill", json=True, stream=stream)
        log.info("before")
        fill(disk / "others", leaving_bytes=0)
        tracemalloc.start()
        for n in range(2_000):
            log.info("full", extra={"n": n, "text": "x" * 100})
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        (disk / "others").unlink()
        for n in range(2):
            log.info("room", extra={"n": n})
        lines = (disk / "log").read_text().splitlines()
    assert held_bytes < 100_000
    told = [json.loads(line) for line in lines]
    assert told[0]["message"] == "before"
    assert [line["message"] for line in told[-2:]] == ["room", "room"]
    num_written = sum(line["message"] == "full" for line in told)
    dropped = re.fullmatch(
        r"up to (\d+) lines of this log could not be written: No space left on device",
        told[-3]["message"],
    )
    assert dropped is not None
    assert int(dropped[1]) + num_written in (2_000, 2_001)
    assert capfd.readouterr() == ("", "")


def test_a_service_whose_log_has_no_reader_goes_on(
    configure: Callable[..., io.StringIO], capfd: pytest.CaptureFixture[str]
) -> None:
    configure()
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    configure_logging("prefill", stream=stream)
    os.close(reader)
    for _ in range(2_000):
        log.info("unheard, %s", "x" * 100)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(BrokenPipeError):
        stream.close()
