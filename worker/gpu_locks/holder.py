"""The text of a lock file: which process holds a place on a GPU.

The text explains a lock to people, and lets the next holder wait for the end of that process. It
decides nothing: it stays when the process has ended, and may name another process than the lock's
for the moment between a lock and the writing of its text.
"""

import os
import select
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
        also if it is this process, or cannot be seen here, as in another PID namespace."""
        if self.pid == os.getpid():
            return True
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            is_another = _started_ticks(self.pid) != self.started_ticks
            return is_another or bool(select.select([pidfd], [], [], within_s)[0])
        finally:
            os.close(pidfd)


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
