"""What of the copy benchmark needs no GPU: the exporter's deadline."""

import subprocess
import sys

import pytest

from bench.handoff_copy import first_line


def started(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_an_exporter_that_says_nothing_is_given_up() -> None:
    silent = started("import time; time.sleep(60)")
    with silent, pytest.raises(SystemExit, match=r"ended with -9 .* it has 0.2 s"):
        first_line(silent, 0.2)


def test_an_exporter_that_ends_at_once_is_given_up_at_once() -> None:
    broken = started("raise SystemExit(3)")
    with broken, pytest.raises(SystemExit, match="ended with 3"):
        first_line(broken, 60.0)


def test_what_it_says_is_read() -> None:
    with started("print('export')") as process:
        assert first_line(process, 60.0) == "export\n"
