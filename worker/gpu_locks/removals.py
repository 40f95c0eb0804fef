"""Notices that a file was removed from a folder, by inotify(7)."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_DELETE = 0x200


@contextmanager
def removals(folder: Path) -> Iterator[int]:
    """A descriptor that is readable once a file was removed. Raises OSError, mostly as the user has
    too many of these (fs.inotify.max_user_instances)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0:
        raise _error(folder)
    try:
        if libc.inotify_add_watch(fd, os.fsencode(folder), _IN_DELETE) < 0:
            raise _error(folder)
        yield fd
    finally:
        os.close(fd)


def _error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"cannot watch {folder} by inotify: {os.strerror(number)}")
