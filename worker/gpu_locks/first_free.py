"""Waiting for the first of several file locks, with a deadline.

flock(2) waits for one file, and the kernel offers no event for "a lock became free": inotify
reports that a file is closed before its lock is released. So a helper process waits, with a thread
for each file (lock_waiter.py). It inherits our open files, and a lock belongs to the open file:
what the helper locks, this process holds. Killing the helper ends all its waits at once.
"""

import fcntl
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from transport.wire.errors import BatonError

_HELPER = Path(__file__).with_name("lock_waiter.py")


def try_lock(fd: int) -> bool:
    """Lock this file unless another process holds the lock; returns True if it is locked now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def first_free(fds: Sequence[int], *, within_s: float | None, wake_fd: int = -1) -> int | None:
    """Wait until one of ``fds`` could be locked, and return it. None after ``within_s`` seconds
    (None: no limit), or as soon as ``wake_fd`` is readable.

    NOTE: a second file may have been locked by then; closing it frees the lock.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(_HELPER), *map(str, fds)],
        stdin=subprocess.PIPE,  # its end tells the helper that this process has ended
        stdout=subprocess.PIPE,
        pass_fds=fds,
    ) as helper:
        assert helper.stdout is not None
        try:
            watched = [helper.stdout.fileno()] + ([wake_fd] if wake_fd >= 0 else [])
            readable, _, _ = select.select(watched, [], [], within_s)
            if helper.stdout.fileno() not in readable:
                return None
            line = helper.stdout.readline()
        finally:
            helper.kill()
    if not line:
        raise BatonError("the helper process that waits for a file lock ended")
    return int(line)
