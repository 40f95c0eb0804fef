"""A worker that stands still ends itself and says where it stood; one that moves does not."""

import subprocess
import sys
import textwrap

import pytest

from worker.settings import WorkerSettings

LOOP = """
    import time
    from unittest.mock import Mock
    from worker.stall import StallGuard
    from worker.loop import WorkerLoop

    def wait_for_the_gpu():
        time.sleep({step_s})
        rounds.append(None)

    rounds = []
    session = Mock(welcomed=True)
    session.receive = lambda wait_s: ()
    pool = Mock(ready=True, empty=True, step=wait_for_the_gpu, wait_s=lambda: 0.0)
    loop = WorkerLoop(
        session, pool, Mock(unfit=lambda: ""), StallGuard({timeout_s}), drain_timeout_s=0.0,
        on_waiting=Mock(), on_ready=Mock(), on_stopping=Mock(),
    )
    loop._drained = lambda: len(rounds) >= {rounds}
    loop.run()
    time.sleep({then_s})
    print("left", len(rounds))
"""


def run(**values: float) -> subprocess.CompletedProcess[str]:
    source = textwrap.dedent(LOOP).format(**{"then_s": 0.0, **values})
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_loop_that_hangs_ends_the_process_and_shows_where() -> None:
    ended = run(step_s=30, rounds=1, timeout_s=0.5)
    assert ended.returncode == 1
    assert "in wait_for_the_gpu" in ended.stderr
    assert ended.stdout == ""


def test_a_loop_that_moves_goes_on_for_longer_than_that() -> None:
    ended = run(step_s=0.1, rounds=15, timeout_s=1.0)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left 15\n", "")


def test_nothing_ends_what_has_left_its_loop() -> None:
    ended = run(step_s=0.0, rounds=1, timeout_s=0.2, then_s=0.5)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left 1\n", "")


def test_without_a_timeout_it_may_stand_still() -> None:
    ended = run(step_s=0.5, rounds=1, timeout_s=0.0)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left 1\n", "")


@pytest.mark.parametrize("timeout_s", [-1.0, float("inf"), float("nan")])
def test_a_timeout_that_means_nothing_is_named(timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"stall_timeout_s: .* is not from 0 to 86400"):
        WorkerSettings("decode", "ipc://x", None, None, stall_timeout_s=timeout_s)  # type: ignore[arg-type]
