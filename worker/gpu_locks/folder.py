"""The folder in which the workers of a node agree on who has which GPU.

    GPU-….0 to GPU-….N-1   one lock file for each place on a GPU; an flock(2) on it is the place
    GPU-….unfit            a mark: no worker gets this GPU (marks.py)
    gpu_share              N, how many places each GPU has

The kernel frees a lock when the process that holds it has ended, however it ended. The files stay,
and what is written in them only explains. GPUs belong to one node, so does the folder: every
container with workers of the node must mount the same one. The default is the same path for all
users of the machine, and a reboot empties it.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transport.wire.errors import DeadlineExceeded

SETTING = "BATON_GPU_LOCK_DIR"
DEFAULT = Path("/dev/shm/baton.gpus")
EXCLUSIVE_S = 30.0
"""Far more than all workers of a node need to look at the locks, one after the other."""
_SHARE = "gpu_share"
_MAX_DIGITS = 20


class LockFolder:
    """The folder at ``path``, made if only its last part is missing. Any user may use it.

    Every method raises ValueError, which names the setting, where the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._named():
            try:
                path.mkdir()
                path.chmod(0o1777)
            except FileExistsError:
                pass
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def open(self, name: str) -> int:
        """A descriptor of the file, made if it is missing, that no program run from here inherits.

        NOTE: in a folder where every user may write, Linux refuses O_CREAT for another user's file.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._named():
            while True:
                try:
                    return os.open(self.path / name, flags)
                except FileNotFoundError:
                    pass
                try:
                    fd = os.open(self.path / name, flags | os.O_CREAT | os.O_EXCL, 0o666)
                except FileExistsError:
                    continue
                os.fchmod(fd, 0o666)  # whatever the umask says
                return fd

    def has(self, name: str, fd: int) -> bool:
        """Whether ``fd`` is still the file of this name; a lock on one that was removed is void."""
        try:
            return os.path.samestat(os.fstat(fd), (self.path / name).lstat())
        except FileNotFoundError:
            return False

    def write(self, fd: int, text: bytes) -> None:
        """Replace what is in the file."""
        with self._named():
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One process of the node at a time; raises DeadlineExceeded after ``EXCLUSIVE_S``."""
        with self._named():
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _lock_within(fd, EXCLUSIVE_S):
                raise DeadlineExceeded(
                    who="this worker",
                    waited_for=f"the lock on the folder {self.path}",
                    after_s=EXCLUSIVE_S,
                    got="no lock: another process holds it, and may have been stopped (SIGSTOP)",
                )
            yield
        finally:
            os.close(fd)

    def agree_on_share(self, share: int) -> int:
        """Agree with the node's other workers on how many places each GPU has.

        Returns a descriptor, which keeps the number as it is until it is closed, by a shared lock
        on the file that has it. Only a worker that is alone changes the number. Raises ValueError
        with both numbers where other workers have another one.
        """
        fd = self.open(_SHARE)
        try:
            with self.exclusive():
                if try_lock(fd):  # no other worker is there
                    self.write(fd, b"%d\n" % share)
                # The exclusive lock on the folder keeps all others away from this file.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                others = os.pread(fd, _MAX_DIGITS, 0).decode(errors="replace").strip()
            if others != str(share):
                raise ValueError(
                    f"gpu_share: {share} here, but {others or 'unknown'} of the other workers of "
                    f"this node, which {self.path} says; set the same for all (BATON_GPU_SHARE), "
                    "or end the others first"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"{SETTING}: cannot use the folder {self.path}: {error.strerror}; name one that "
                "exists, that this user may write to, and that all workers of this node share"
            ) from None


def try_lock(fd: int) -> bool:
    """Lock this file if that takes no wait; returns whether it is locked now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(fd: int, within_s: float) -> bool:
    """Lock this file, waiting ``within_s`` at most; returns whether it is locked now.

    flock(2) has no deadline, so a thread waits for it. The lock that a thread gets after the
    deadline ends with it, once the caller has closed ``fd``.
    """
    if try_lock(fd):
        return True
    waiting = threading.Thread(target=fcntl.flock, args=(fd, fcntl.LOCK_EX), daemon=True)
    waiting.start()
    waiting.join(within_s)
    return not waiting.is_alive()
