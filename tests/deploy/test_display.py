"""What start-up looks like, on a terminal and elsewhere."""

import contextlib
import io
import os
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from deploy.console import Console as PlainConsole
from deploy.console import LogStream, LogWriter, TerminalConsole


def test_plain_status_repeats_only_when_it_says_something_new():
    err, out = io.StringIO(), io.StringIO()
    plain = PlainConsole(err, out)
    for percent in (1, 2, 30, 31, 60, 100):
        plain.status("decode-1", f"loading weights {percent}%", percent / 100)
    plain.status("decode-1", "ready")
    plain.status("decode-1", "ready")
    plain.log("decode-1", "hello")
    plain.ready(["try it", "ready: here"])
    assert err.getvalue().splitlines() == [
        "decode-1: loading weights 1%",
        "decode-1: loading weights 30%",
        "decode-1: loading weights 60%",
        "decode-1: loading weights 100%",
        "decode-1: ready",
        "decode-1 | hello",
    ]
    assert out.getvalue().splitlines()[-1] == "ready: here"


class Later(list[Callable[[], None]]):
    """``call_later`` whose functions a test calls."""

    def __call__(self, after_s: float, call: Callable[[], None]) -> None:
        self.append(call)


def test_terminal_is_drawn_once_for_all_that_has_come_meanwhile():
    screen, later = io.StringIO(), Later()
    moving = TerminalConsole(
        Console(file=screen, force_terminal=True, width=80), io.StringIO(), later
    )
    moving.status("decode-1", "starting")
    before = screen.tell()
    for percent in range(100):
        moving.status("decode-1", f"loading weights {percent}%", percent / 100)
        moving.log("decode-1", f"tensor {percent}")
    assert (screen.tell(), len(later)) == (before, 1)
    later.pop()()
    shown = screen.getvalue()[before:]
    assert [f"tensor {percent}" in shown for percent in range(100)] == [True] * 100
    assert shown.count("loading weights") <= 2
    assert "loading weights 99%" in shown
    moving.log("decode-1", "one more")
    assert len(later) == 1
    moving.close()
    assert "one more" in screen.getvalue()
    later.pop()()  # as an event loop does: the table is gone


def test_terminal_gets_its_cursor_back():
    screen, out = io.StringIO(), io.StringIO()
    moving = TerminalConsole(Console(file=screen, force_terminal=True, width=80), out, Later())
    moving.status("decode-1", "loading weights 40%", 0.4)
    moving.log("decode-1", "[not markup]")
    moving.status("decode-1", "ready")
    moving.ready(["ready: here"])
    moving.status("decode-1", "killed by SIGKILL")
    shown = screen.getvalue()
    assert "loading weights 40%" in shown
    assert "decode-1 | [not markup]" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "decode-1: killed by SIGKILL" in shown
    assert out.getvalue() == "ready: here\n"


@pytest.mark.parametrize("file", ["/dev/full", "/dev/null"])
def test_lost_terminal_stops_nothing(file):
    fd = os.open(file, os.O_WRONLY)
    writer = LogWriter()
    PlainConsole(LogStream(writer, fd, "ascii"), io.StringIO()).say("into the vöid")
    writer.close(5.0)
    os.close(fd)


def fill(fd):
    """Writes what a pipe takes without a reader; how many bytes."""
    os.set_blocking(fd, False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(fd, b"-" * 4096)
    os.set_blocking(fd, True)
    return written


def put_then_read(writer):
    """Five thousand lines, put before any is read, and what a late reader reads."""
    read_end, write_end = os.pipe()
    filler = fill(write_end)  # so that no line gets through before
    lines = [b"%06d " % i + b"x" * 100 + b"\n" for i in range(5000)]
    for line in lines:
        writer.put(write_end, line)
    chunks = []

    def read():
        while chunk := os.read(read_end, 65536):
            chunks.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    writer.close(5.0)
    os.close(write_end)
    thread.join()
    os.close(read_end)
    return lines, b"".join(chunks)[filler:]


def test_a_late_reader_reads_all_in_order():
    lines, found = put_then_read(LogWriter())
    assert found == b"".join(lines)


def test_lines_that_are_not_read_are_dropped_and_counted():
    lines, found = put_then_read(LogWriter(max_pending_bytes=200_000))
    *kept, last = found.splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    assert last == b"%d lines dropped: this output was not read\n" % (5000 - len(kept))


def test_what_is_not_read_of_one_descriptor_crowds_out_no_line_of_another(tmp_path):
    read_end, write_end = os.pipe()
    fill(write_end)
    writer = LogWriter(max_pending_bytes=1000)
    with (tmp_path / "out").open("wb") as out:
        for _ in range(50):
            writer.put(write_end, b"x" * 99 + b"\n")
        writer.put(out.fileno(), b"ready\n")
        os.close(read_end)  # a write to it fails from now on
        writer.close(5.0)
    os.close(write_end)
    assert (tmp_path / "out").read_bytes() == b"ready\n"


def test_close_does_not_wait_for_a_reader_beyond_its_deadline():
    read_end, write_end = os.pipe()
    writer = LogWriter()
    writer.put(write_end, b"x" * 500_000)
    writer.close(0.1)
    os.close(read_end)
    os.close(write_end)
