"""Notices that a file was removed from a folder, by inotify(7)."""

import ctypes
import os
from pathlib import Path

_IN_DELETE = 0x200
_BUFFER_BYTES = 64 * 1024


class Removals:
    """Readable (``fileno``) once a file was removed since the construction, until ``forget``.

    Raises OSError, mostly as the user has too many of these (fs.inotify.max_user_instances).
    """

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise self._error(folder)
        if libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_DELETE) < 0:
            os.close(self._fd)
            raise self._error(folder)

    def fileno(self) -> int:
        return self._fd

    def forget(self) -> None:
        try:
            while os.read(self._fd, _BUFFER_BYTES):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def _error(folder: Path) -> OSError:
        number = ctypes.get_errno()
        return OSError(number, f"cannot watch {folder} by inotify: {os.strerror(number)}")
