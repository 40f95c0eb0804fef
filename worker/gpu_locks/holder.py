"""The text of a lock file: which process holds a place on a GPU.

The text explains a lock to people, and lets other workers wait for the end of that process. It
decides nothing: it stays when the process has ended, and may name another process than the lock's
for the moment between a lock and the writing of its text.
"""

import os
import select
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

_MAX_BYTES = 4096


class Holder(msgspec.Struct, frozen=True):
    """A worker's process. ``started_ticks`` is when it started, in the kernel's ticks since the
    boot: another process that has its number later started at another time."""

    instance: str
    pid: int
    started_ticks: int

    def __str__(self) -> str:
        return f"{self.instance}, pid {self.pid}"

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    def has_ended(self, within_s: float) -> bool:
        """True if that process has ended, and closed all its files, or does so within this time;
        also if it cannot be seen here, as in another PID namespace."""
        pidfd = self._open()
        if pidfd is None:
            return True
        try:
            return bool(select.select([pidfd], [], [], within_s)[0])
        finally:
            os.close(pidfd)

    def _open(self) -> int | None:
        """A descriptor of that process; None for this one, or one that is not seen here."""
        if self.pid == os.getpid():
            return None
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return None
        if _started_ticks(self.pid) == self.started_ticks:
            return pidfd
        os.close(pidfd)
        return None


def wait_for_an_end(holders: Iterable[Holder], within_s: float) -> None:
    """Wait until one of these processes ends, ``within_s`` at most. Those that have ended by now,
    or are not seen here, do not count."""
    with ExitStack() as opened:
        pidfds = [pidfd for each in holders if (pidfd := each._open()) is not None]
        for pidfd in pidfds:
            opened.callback(os.close, pidfd)
        ended, _, _ = select.select(pidfds, [], [], 0)
        select.select([pidfd for pidfd in pidfds if pidfd not in ended], [], [], within_s)


def this_process(instance: str) -> Holder:
    return Holder(instance, os.getpid(), _started_ticks(os.getpid()))


def written_in(fd: int) -> Holder | None:
    """The holder that a lock file names; None for a new file, or any other text."""
    try:
        return msgspec.json.decode(os.pread(fd, _MAX_BYTES, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _started_ticks(pid: int) -> int:
    """Field 22 of proc_pid_stat(5); -1 of a process that cannot be seen. The second field, the
    program's name in parentheses, may have spaces."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return -1
    return int(stat.rpartition(b")")[2].split()[19])
