"""``baton up`` on a terminal, whose table must not hold up the start."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.stack import ROOT
from tests.deploy.running import DEADLINE_S, stub_environment, stub_options


def until(terminal: int, text: bytes) -> bytes:
    """All that the terminal shows up to the line with ``text``."""
    shown, deadline = b"", time.monotonic() + 2 * DEADLINE_S
    while text not in shown or not shown.endswith(b"\n"):
        left_s = max(deadline - time.monotonic(), 0)
        assert select.select([terminal], [], [], left_s)[0], shown[-2000:].decode(errors="replace")
        shown += os.read(terminal, 1 << 16)
    return shown


def test_eight_workers_that_report_all_the_time_get_ready(short_dir: Path) -> None:
    here, there = pty.openpty()
    options = [*stub_options(short_dir), "--prefill", "2", "--decode", "6", "--port", "0"]
    flood = {"STUB_PREFILL": "flood ready", "STUB_DECODE": "flood ready"}
    terminal = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    baton = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.quick_up", "up", *options], cwd=ROOT,
        stdin=there, stdout=there, stderr=there, start_new_session=True,
        env=stub_environment(short_dir, flood | terminal),
    )  # fmt: skip
    os.close(there)
    try:
        shown = until(here, b"ready: http")
        drawn = shown.count(b"decode-6")  # a row of the table, or a line of the service's
        assert b"(2 prefill, 6 decode, cpu, model)" in shown
        last_line = b"decode-6 | tensor 1980"
        if last_line not in shown:  # lines come by another way than reports
            until(here, last_line)
        # 16,000 reports and 800 lines come within seconds; five drawings a second show them.
        assert drawn < 100 + 5 * 2 * DEADLINE_S
        baton.send_signal(signal.SIGTERM)
        until(here, b"SIGTERM: draining")
        assert baton.wait(DEADLINE_S) == 0
    finally:
        baton.kill()
        baton.wait()
        os.close(here)
