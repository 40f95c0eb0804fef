"""A worker that stands still ends itself and says where it stood; one that moves does not."""

import signal
import subprocess
import sys

import pytest

from worker.settings import WorkerSettings

LOOPS = """
import sys
import time
from unittest.mock import Mock
from worker.stall import StallGuard
from worker.loop import WorkerLoop

def run(step_s, num_steps, timeout_s, then_s=0.0):
    def wait_for_the_gpu(max_wait_s):
        time.sleep(step_s)
        steps.append(None)

    steps = []
    session = Mock(welcomed=True)
    worker = Mock(ready=True, empty=True, round=wait_for_the_gpu)
    loop = WorkerLoop(
        session, worker, Mock(unfit=lambda: ""), StallGuard(timeout_s), Mock(), drain_timeout_s=0.0
    )
    loop._drained = lambda: len(steps) >= num_steps
    loop.run()
    time.sleep(then_s)

for arguments in sys.argv[1:]:
    run(*map(float, arguments.split()))
    print("left", arguments, flush=True)
"""


def loops(*runs: str) -> subprocess.CompletedProcess[str]:
    """Loops one after the other in one process, each given as seconds a step, steps, timeout in
    seconds and seconds after the loop."""
    command = [sys.executable, "-c", LOOPS, *runs]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_loop_that_hangs_ends_the_process_and_shows_where() -> None:
    ended = loops("30 1 0.5")
    assert ended.returncode == 1
    assert "in wait_for_the_gpu" in ended.stderr
    assert ended.stdout == ""


def test_no_process_ends_whose_loop_moves_or_is_left_or_has_no_timeout() -> None:
    moves_for_longer_than_the_timeout, left, no_timeout = "0.25 15 3.5", "0 1 0.2 0.5", "0.5 1 0"
    ended = loops(moves_for_longer_than_the_timeout, left, no_timeout)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["left 0.25 15 3.5", "left 0 1 0.2 0.5", "left 0.5 1 0"]


@pytest.mark.parametrize("timeout_s", [-1.0, float("inf"), float("nan")])
def test_a_timeout_that_means_nothing_is_named(timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"stall_timeout_s: .* is not from 0 to 86400"):
        WorkerSettings("decode", "ipc://x", None, None, stall_timeout_s=timeout_s)  # type: ignore[arg-type]


def test_an_end_that_does_not_come_is_made_by_a_signal() -> None:
    code = "import threading\nfrom worker.stall import end_within\nend_within(1)\n"
    code += "threading.Event().wait()  # as for a thread that cannot start"
    ended = subprocess.run([sys.executable, "-c", code], timeout=30.0, check=False)
    assert ended.returncode == -signal.SIGALRM
