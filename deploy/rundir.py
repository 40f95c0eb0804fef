"""The private folder of one ``baton up`` (sockets, Redis's files), and its removal after a kill.

The ``baton up`` that made the folder holds a flock on it, which the kernel releases however that
process dies. A folder that is not locked is therefore left over: its guardian, or else the next
start, removes it together with the processes that still run for it. Services and their helpers have
the folder's path in their environment.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from transport.copy import shm

PREFIX = "baton-up-"
# A unix socket's path has at most 107 bytes; leave room for the longest name put inside.
_MAX_DIR_BYTES = 107 - len(f"/{PREFIX}12345678") - 40
_DEATH_DEADLINE_S = 5.0
_PF_EXITING = 0x4  # of the flags in proc_pid_stat(5)
_CODE = Path(__file__).resolve().parent.parent


class RunDir:
    """A fresh folder of mode 0700, locked by this process until ``remove`` or its death."""

    def __init__(self, base: Path) -> None:
        """Raises OSError if ``base`` cannot take it."""
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)
            # Another start removed it as abandoned before it was locked: make another one.

    def remove(self) -> None:
        """Kill the processes that still run for the folder, and remove it."""
        _clear(self.path)
        os.close(self._lock)


class Guardian:
    """A process that cleans up at once after a ``baton up`` that was killed: ``python -m
    deploy.rundir RUN_DIR``.

    It waits for the lock of the run folder, kills the processes that are left, and removes the
    folder and the shared memory of dead owners: gigabytes, on a machine without GPUs. If the
    guardian was killed too, the services still end (die_with_parent.py), and the next ``baton up``
    removes the rest. It has a session of its own: a terminal's signals do not reach it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.rundir", str(run_dir)],
            env={**without_settings(os.environ), "PYTHONPATH": str(_CODE), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out Baton's settings, among them API keys, passwords and the channel secret, for a
    process that needs none of them."""
    return {name: value for name, value in environ.items() if not name.startswith("BATON_")}


def notify_socket(run_dir: Path) -> Path:
    """The socket that services report to; every service has this path as its NOTIFY_SOCKET."""
    return run_dir / "notify.sock"


def base_dir(environ: Mapping[str, str]) -> Path:
    """The folder in which run folders are made: XDG_RUNTIME_DIR, else the temporary folder.

    Raises ValueError if neither is writable and short enough for a socket's path.
    """
    candidates = [environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for candidate in filter(None, candidates):
        short = len(os.fsencode(candidate)) <= _MAX_DIR_BYTES
        if short and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    raise ValueError(f"TMPDIR: none of {candidates} is a writable folder with a short path")


def remove_abandoned(base: Path) -> list[Path]:
    """Remove the user's run folders in ``base`` whose owner is dead; returns their paths."""
    return [path for path in base.glob(f"{PREFIX}{'?' * 8}") if _remove(path, fcntl.LOCK_NB)]


def _remove(run_dir: Path, flags: int) -> bool:
    """Remove a folder that no process has locked, if ``mkdtemp`` made it for this user. ``flags``
    0: wait for its lock, which ends when its owner ends."""
    try:
        lock = os.open(run_dir, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = os.fstat(lock)
        if (stat.S_IMODE(info.st_mode), info.st_uid) != (0o700, os.getuid()):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        _clear(run_dir)
    except OSError:  # it is locked
        return False
    finally:
        os.close(lock)
    return True


def _clear(path: Path) -> None:
    deadline = time.monotonic() + _DEATH_DEADLINE_S
    while (pidfds := _kill_processes(path)) and time.monotonic() < deadline:
        for pidfd in pidfds:
            select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
            os.close(pidfd)
    shutil.rmtree(path, ignore_errors=True)


def _kill_processes(run_dir: Path) -> list[int]:
    """Kill the processes that have ``run_dir`` in their environment. Returns a pidfd for each, and
    for each process that is exiting: its environment cannot be read any more, but it may be a
    process of this folder that still holds the lock of its shared memory."""
    variable = os.fsencode(f"NOTIFY_SOCKET={notify_socket(run_dir)}")
    pidfds = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(int(process.name))  # first: the process that is read is killed
            if variable in _environ(process):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                pidfds.append(pidfd)
            elif _is_exiting(process) and not select.select([pidfd], [], [], 0)[0]:
                pidfds.append(pidfd)
            else:
                os.close(pidfd)
    return pidfds


def _environ(process: Path) -> list[bytes]:
    """The environment of a process; empty if it exits or is another user's."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_exiting(process: Path) -> bool:
    try:
        after_name = (process / "stat").read_text(errors="replace").rpartition(")")[2]
    except OSError:
        return False
    return bool(int(after_name.split()[6]) & _PF_EXITING)


def main(run_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _remove(run_dir, 0)
    shm.sweep()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
