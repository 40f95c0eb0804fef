"""The private folder of one ``baton up``: sockets, Redis's files; gone when it is gone.

The folder belongs to whoever holds the flock on its ``baton.lock``, which the kernel lets go
when the owner dies, however it dies. A folder whose lock is free is therefore litter, and the
next start sweeps it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

PREFIX = "baton-run-"
_LOCK = "baton.lock"
_UNBORN_LOCK = "baton.lock.new"
# A unix socket's path has at most 107 bytes; leave room for the longest name put inside.
_MAX_DIR_BYTES = 107 - len(f"/{PREFIX}12345678") - 40
_BIRTH_S = 3600.0


class RunDir:
    """A fresh folder of mode 0700, ours until ``remove`` or death."""

    def __init__(self, base: Path) -> None:
        """Raises OSError if ``base`` cannot take it."""
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        # Locked before it gets its name: a lock that is visible and free has lost its owner.
        newborn = self.path / _UNBORN_LOCK
        self._lock_fd = os.open(newborn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        newborn.rename(self.path / _LOCK)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)


def base_dir(environ: Mapping[str, str]) -> Path:
    """Where run folders live: XDG_RUNTIME_DIR, else the temporary folder.

    Raises ValueError when neither is writable and short enough for a socket's path.
    """
    candidates = [environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for candidate in filter(None, candidates):
        short = len(os.fsencode(candidate)) <= _MAX_DIR_BYTES
        if short and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    raise ValueError(f"TMPDIR: none of {candidates} is a writable folder with a short path")


def sweep(base: Path) -> list[Path]:
    """Remove the run folders in ``base`` whose owner is dead; returns what was removed."""
    return [path for path in base.glob(f"{PREFIX}*") if _is_ours(path) and _remove_dead(path)]


def _is_ours(path: Path) -> bool:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _remove_dead(path: Path) -> bool:
    try:
        lock_fd = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _remove_unborn(path)
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock_fd)
    return True


def _remove_unborn(path: Path) -> bool:
    """A folder without its lock is about to get it, or died before; nobody takes an hour."""
    try:
        if not set(os.listdir(path)) <= {_UNBORN_LOCK}:
            return False  # somebody else's that happens to have our prefix
        if time.time() - path.stat().st_mtime < _BIRTH_S:
            return False
        shutil.rmtree(path, ignore_errors=True)
    except FileNotFoundError:
        return False
    return True
