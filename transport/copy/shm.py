"""Cache memory on a machine without GPUs: POSIX shared memory, named after its owner's instance.

A segment is a file in ``/dev/shm``. Its owner keeps an exclusive ``flock`` on it until the process
ends. So a segment whose lock is free has a dead owner, and ``sweep`` may unlink it; a peer that has
it mapped can read every byte until it unmaps it.
"""

import errno
import fcntl
import mmap
import os
import re
import shutil
from pathlib import Path

from transport.wire.errors import PeerGone, SharedMemoryFull

DIRECTORY = Path("/dev/shm")
PREFIX = "baton-"
_HANDLE = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Segment:
    """One exported region, owned by this process; ``memory`` is valid until ``close``.

    Raises SharedMemoryFull when shared memory is too small. All of it is reserved here, since a
    write without memory behind it later would end the process by SIGBUS.
    """

    def __init__(self, instance: str, size_bytes: int) -> None:
        self.handle = PREFIX + instance
        self.size_bytes = size_bytes
        self._path = DIRECTORY / self.handle
        try:
            self._fd = self._create_locked()
            try:
                os.posix_fallocate(self._fd, 0, size_bytes)
            except OSError:
                self.close()
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(error) from error
            raise
        self.memory = mmap.mmap(self._fd, size_bytes)

    def _create_locked(self) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)  # removed by a sweep between creation and lock

    def _full(self, error: OSError) -> SharedMemoryFull:
        usage = shutil.disk_usage(DIRECTORY)
        return SharedMemoryFull(
            f"cannot reserve {self.size_bytes} bytes for {self.handle} in {DIRECTORY}, of whose "
            f"{usage.total} bytes {usage.free} are free: {error.strerror}; set fewer pages and "
            "state slots (BATON_NUM_PAGES, BATON_NUM_STATE_SLOTS), or enlarge it (in compose "
            "SHM_SIZE, else docker's --shm-size or the size of its tmpfs)"
        )

    def lost(self) -> str:
        """Why peers cannot open this segment any more; "" while they can."""
        try:
            at = self._path.stat()
        except OSError as error:
            return f"shared memory segment {self._path} is gone: {error.strerror}"
        ours = os.fstat(self._fd)
        if (at.st_dev, at.st_ino) != (ours.st_dev, ours.st_ino):
            return f"shared memory segment {self._path} is another file now"
        return ""

    def close(self) -> None:
        """Unlink the file and free the lock; mappings of it stay valid until they are closed."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def open_segment(handle: str, size_bytes: int) -> mmap.mmap:
    """Map a peer's segment; raises PeerGone when it no longer exists or cannot be opened.

    ``handle`` came over the channel, so a string that is no segment's name is refused and not
    opened. The mapping is writable because torch has no read-only tensors; a puller only reads.
    """
    if not _HANDLE.fullmatch(handle):
        raise PeerGone(f"{handle[:80]!r} is no shared memory segment's name")
    try:
        fd = os.open(DIRECTORY / handle, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PeerGone(f"shared memory segment {handle} no longer exists") from error
    except OSError as error:
        raise PeerGone(f"shared memory segment {handle} cannot be opened: {error}") from error
    try:
        found = os.fstat(fd).st_size
        if found != size_bytes:
            raise PeerGone(f"shared memory segment {handle} has {found} bytes, not {size_bytes}")
        return mmap.mmap(fd, size_bytes)
    except OSError as error:
        raise PeerGone(f"shared memory segment {handle} cannot be mapped: {error}") from error
    finally:
        os.close(fd)


def sweep() -> list[str]:
    """Unlink every segment whose owner is dead; returns their names."""
    swept = []
    for path in DIRECTORY.glob(PREFIX + "*"):
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError:  # removed meanwhile, another user's, or no segment
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            swept.append(path.name)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
    return swept
