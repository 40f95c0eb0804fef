"""Baton's own commands as processes, each with a deadline, and the results of ``baton bench``.

NOTE: run a command on the main thread (deploy/die_with_parent.py).
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import result_file, stack
from deploy.die_with_parent import die_with_parent

PLAIN_SAMPLING = ("--extra-body", '{"top_k": 0, "top_p": 1.0}')
"""Plain temperature in place of the checkpoint's defaults, as the other
engines were measured."""
END_S = 20.0
"""Time for a killed process to end, and for ``baton bench`` to write its result at its limit."""
_LAST = 2000


class CommandFailed(Exception):
    """A command did not end in time or wrote no result; the message has its last output."""


@dataclass(frozen=True)
class Ended:
    """A command that ended; ``said``: its output on stdout and stderr."""

    exit_code: int
    said: str


@dataclass(frozen=True)
class Measured(Ended):
    """A measurement that ended; ``document``: the content of its result file."""

    document: dict[str, Any]


def run(arguments: Sequence[str], within_s: float) -> Ended:
    """Run ``python -m`` with ``arguments``. After ``within_s`` the process and its group are
    killed, and CommandFailed is raised."""
    process = subprocess.Popen(
        die_with_parent([sys.executable, "-m", *arguments]), env=stack.environment({}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=END_S)
        raise CommandFailed(
            f"{arguments[0]} has not ended in {within_s:.0f} s: {said[-_LAST:]}"
        ) from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.returncode, said)


def baton_bench(kind: str, *options: str, url: str, within_s: float) -> Measured:
    """Run ``baton bench KIND`` against the server at ``url``, with plain sampling. The exit code
    says how the run ended. Raises CommandFailed if it left no result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = ["deploy.cli", "bench", kind, "--url", url, "--out", str(out)]
        ended = run([*words, *options, *PLAIN_SAMPLING], within_s)
        if not out.exists():
            said = ended.said[-_LAST:]
            raise CommandFailed(f"baton bench {kind} ended with {ended.exit_code}: {said}")
        return Measured(ended.exit_code, ended.said, result_file.load(out))
