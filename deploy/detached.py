"""Servers that ``baton up --detach`` leaves running: their files, their start and their end.

The files of each are named by its port, in ``$XDG_STATE_HOME/baton``. The server holds a flock on
its ``.lock`` file, which the kernel releases however it dies, so a process id in that file is never
that of another process.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.managed_process import NotifySocket
from deploy.ports import require_port

READY_DEADLINE_S = 3_600.0
_STOP_S = 60.0


@dataclass(frozen=True)
class Started:
    """The end of a start: ``exit_code`` 0 and the ready line, or the code of a start that
    failed."""

    exit_code: int
    ready_line: str = ""


@dataclass(frozen=True)
class Detached:
    """The detached server of a port."""

    port: int
    folder: Path

    @classmethod
    def of(cls, port: int, environ: Mapping[str, str]) -> "Detached":
        """Raises ValueError naming the setting."""
        require_port(port)
        state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return cls(port, Path(state) / "baton")

    @property
    def log(self) -> Path:
        return self.folder / f"{self.port}.log"

    @property
    def _lock(self) -> Path:
        return self.folder / f"{self.port}.lock"

    def missing(self) -> str:
        """What to say where no server of this port was detached."""
        return f"--port: no server of port {self.port} was detached{self._others()}"

    def _others(self) -> str:
        ports = sorted(int(lock.stem) for lock in self.folder.glob("*.lock") if lock.stem.isdigit())
        running = [port for port in ports if Detached(port, self.folder).pid() is not None]
        return f"; running: --port {', '.join(map(str, running))}" if running else ""

    def pid(self) -> int | None:
        """The process id of the server; None if none runs."""
        try:
            with self._lock.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0) or None
        except FileNotFoundError:
            pass
        return None

    def start(self, arguments: Sequence[str], environ: Mapping[str, str]) -> Started:
        """Run ``baton`` with these arguments until it is ready or has ended. Raises ValueError if a
        server of this port runs already."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as files:
            lock = files.enter_context(self._lock.open("a+"))
            _hold(lock.fileno(), self.port)
            os.ftruncate(lock.fileno(), 0)  # the process id of the server before
            log = files.enter_context(self.log.open("w"))  # once no server writes to it
            os.fchmod(log.fileno(), 0o600)
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="baton-detach-"))
            notices = NotifySocket(path := Path(folder) / "notify.sock")
            process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", *arguments],
                env={**environ, "NOTIFY_SOCKET": str(path)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=[lock.fileno()], start_new_session=True,
            )  # fmt: skip
            os.write(lock.fileno(), f"{process.pid}\n".encode())
            files.callback(notices.close)
            return _until_ready(process, notices)

    def stop(self, within_s: float) -> bool:
        """Let the server drain and end. False if it still runs after ``within_s``. Raises
        ValueError if none runs."""
        pid = self.pid()
        if pid is None:
            raise ValueError(f"--port: no detached server of port {self.port} runs{self._others()}")
        with _pidfd(pid) as pidfd:
            if self.pid() != pid:
                return True  # it ended meanwhile
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            return bool(select.select([pidfd], [], [], within_s)[0])


def _hold(lock: int, port: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        advice = f"`baton down --port {port}` ends it"
        raise ValueError(f"--port: a detached server of port {port} runs; {advice}") from None


def _until_ready(process: subprocess.Popen[bytes], notices: NotifySocket) -> Started:
    """Wait until the server is ready, has ended, or must be ended: at a signal or the deadline."""
    deadline = time.monotonic() + READY_DEADLINE_S
    try:
        with _interrupted_by_sigterm(), _pidfd(process.pid) as pidfd:
            while (left_s := deadline - time.monotonic()) > 0:
                readable, _, _ = select.select([notices.fileno(), pidfd], [], [], left_s)
                for notice in notices.receive():
                    if notice.ready and notice.pid == process.pid:
                        return Started(0, notice.status or "ready")
                if pidfd in readable:
                    return Started(process.wait() or 1)
    except KeyboardInterrupt:
        pass
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return Started(1)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt too, as it also means that no server is wanted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)
