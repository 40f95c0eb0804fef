"""Cleans up after a supervisor that had no chance to: ``python -m deploy.guardian RUN_DIR``.

The guardian is told on its standard input which process groups the supervisor has started
(``+PID``) and seen end (``-PID``). End of file means that the supervisor is gone, SIGKILL or
not: then every group left is killed, the run folder removed, dead owners' shared memory swept.
After an orderly stop there is nothing left to do.

The children's own lifeline (lifeline.py) ends them even if the guardian is killed as well; the
guardian adds their helpers and the files. One that is killed is replaced, so that files stay until
the next start only where both are killed at once. It lives in its own session, so what the terminal
sends to the foreground spares it, and ignores polite signals: end of file ends it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_DEATH_DEADLINE_S = 5.0
_MAX_REPLACED = 10


class Guardian:
    """The supervisor's end. Losing the guardian never stops the supervisor: ``pidfd`` is readable
    then, and ``replace`` starts another."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._groups: set[int] = set()
        self._num_replaced = 0
        self._start()

    def started(self, pid: int) -> None:
        self._groups.add(pid)
        self._tell(f"+{pid}\n")

    def ended(self, pid: int) -> None:
        self._groups.discard(pid)
        self._tell(f"-{pid}\n")

    def replace(self) -> bool:
        """Start another in place of one that died; False after ``_MAX_REPLACED`` times."""
        self._reap()
        if self._num_replaced == _MAX_REPLACED:
            return False
        self._num_replaced += 1
        self._start()
        for pid in self._groups:
            self._tell(f"+{pid}\n")
        return True

    def close(self, deadline_s: float) -> None:
        """Let the guardian do what is left and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def _start(self) -> None:
        code = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.guardian", str(self._run_dir)],
            env={**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pidfd: int | None = os.pidfd_open(self._process.pid)

    def _reap(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # dead, and perhaps closed
            os.write(self._process.stdin.fileno(), line.encode())


def main(run_dir: Path) -> None:
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(polite, signal.SIG_IGN)
    groups: dict[int, int | None] = {}
    for line in sys.stdin:
        if line.startswith("+"):
            pid = int(line[1:])
            groups[pid] = _pidfd(pid)
        elif (pidfd := groups.pop(int(line[1:]), None)) is not None:
            os.close(pidfd)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    _wait_dead([pidfd for pidfd in groups.values() if pidfd is not None])
    shutil.rmtree(run_dir, ignore_errors=True)

    from transport.copy import shm  # here, so that until now the guardian is next to nothing

    shm.sweep()


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait_dead(pidfds: list[int]) -> None:
    """A pidfd becomes readable when its process is dead, and its locks and files are let go."""
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    left, deadline = len(pidfds), time.monotonic() + _DEATH_DEADLINE_S
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(remaining_s * 1000):
            poller.unregister(pidfd)
            left -= 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
