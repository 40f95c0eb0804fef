"""One process of a service: from its start until it is reaped, what it reports about itself, and
when the next one starts."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deploy.die_with_parent import die_with_parent
from deploy.services import Service
from telemetry.last_words import fatal_reason

SILENCE_S = 600.0
"""A process that is not ready and reports no progress for this long is hung."""
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_LAST_LINES = 20
_MAX_DATAGRAM_BYTES = 64 * 1024
_SERVED_S = 1.0
_MINUTE_S = 60.0


class ManagedProcess:
    """A running process, the leader of a process group; it dies with this process.

    Create it on the main thread (die_with_parent.py), then await ``run`` once. ``status``: the last
    progress that it reported. ``error``: the reason that it gave for its end, if any.
    """

    def __init__(self, service: Service, silence_s: float = SILENCE_S) -> None:
        """Start the process. Raises OSError if that is not possible."""
        listen_fds = [] if service.listen_fd is None else [service.listen_fd]
        # NOTE: not asyncio's subprocess: its ``wait`` also waits until every process that
        # inherited the output has closed it, and it reaps the process before the rest of
        # its group is killed.
        self._process = subprocess.Popen(
            die_with_parent(service.argv, service.listen_fd),
            env=service.env,
            pass_fds=listen_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # a Ctrl-C in the terminal reaches the supervisor alone
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._partial_line = b""
        self._silence_s = silence_s
        self._silence: asyncio.Timeout | None = None
        self._ready_at: float | None = None
        self.service = service
        self.pid = self._process.pid
        self.status = "starting"
        self.error = ""
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def ready(self) -> bool:
        return self._ready_at is not None

    @property
    def ready_for_s(self) -> float | None:
        """How long it has been ready; None if it never was."""
        return None if self._ready_at is None else time.monotonic() - self._ready_at

    def progressed(self, status: str, *, ready: bool) -> None:
        """Note a report of the process. It may be silent for ``silence_s`` again, and without
        limit once it is ready."""
        self.status = status
        if ready and self._ready_at is None:
            self._ready_at = time.monotonic()
        if self._silence is not None and not self._silence.expired():
            now = asyncio.get_running_loop().time()
            self._silence.reschedule(None if self.ready else now + self._silence_s)

    async def run(self, on_line: Callable[[str], None]) -> int:
        """Pass each line of its output to ``on_line`` until it is dead, then kill the processes of
        its group that are left. Returns its exit code, or minus the number of the signal that
        killed it."""
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        pidfd = os.pidfd_open(self.pid)
        loop.add_reader(pidfd, dead.set)
        loop.add_reader(self._output, self._read, on_line)
        try:
            async with asyncio.timeout(self._silence_s) as self._silence:
                await dead.wait()
        except TimeoutError:
            silence = f"not ready and silent for {self._silence_s:g} s"
            self.error = f"{silence}, last at: {self.status}"
            self.kill()
            await dead.wait()
        finally:
            self._silence = None
            loop.remove_reader(pidfd)
            loop.remove_reader(self._output)
            os.close(pidfd)
        self.kill()  # the rest of its group
        while self._read(on_line):
            pass  # the last output, without waiting for a process that left the group
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    # Valid until ``run`` returns: until the process is reaped, no other one gets its number.

    def terminate(self) -> None:
        """Tell the process to end. It ends its own helpers."""
        os.kill(self.pid, signal.SIGTERM)

    def interrupt(self) -> None:
        """Tell a ready coordinator to end without a successor."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process and its helpers now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self, on_line: Callable[[str], None]) -> bool:
        """Pass on the lines that can be read now; True if there may be more."""
        try:
            chunk = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        if not chunk or len(self._partial_line) >= _MAX_LINE_BYTES:
            lines, self._partial_line = [*lines, self._partial_line], b""
        for line in (line.decode(errors="replace").rstrip() for line in lines):
            if line:
                self.error = fatal_reason(line) or self.error
                self.last_lines.append(line)
                on_line(line)
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._output)
        return chunk != b""


def describe_exit(code: int) -> str:
    """How a process ended, in words.

    >>> describe_exit(-9)
    'killed by SIGKILL'
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@dataclass(frozen=True)
class Notice:
    """One report of a service: the process that sent it, its status and whether it is ready.
    ``fraction`` is how much of a long step is done, from 0 to 1; None if it does not say."""

    pid: int
    status: str | None
    ready: bool
    fraction: float | None


class NotifySocket:
    """Receives the notices of telemetry/notify.py at ``path``; readable when a notice waits."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Notice]:
        """All waiting notices in order. A datagram that is no notice is dropped."""
        notices: list[Notice] = []
        while True:
            try:
                datagram = self._socket.recv(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return notices
            if (notice := parse_notice(datagram)) is not None:
                notices.append(notice)

    def close(self) -> None:
        self._socket.close()


def parse_notice(datagram: bytes) -> Notice | None:
    """The notice in a datagram; None if it does not name its sender."""
    lines = datagram.decode(errors="replace").split("\n")
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        pid = int(fields["X_BATON_PID"])
        progress = float(fields["X_BATON_PROGRESS"]) if "X_BATON_PROGRESS" in fields else None
    except (KeyError, ValueError):
        return None
    return Notice(pid, fields.get("STATUS"), fields.get("READY") == "1", progress)


@dataclass
class RestartPolicy:
    """When a service that ended starts again. Pure: it is told durations and keeps no clock.

    The first ``num_at_once`` starts within ``_MINUTE_S`` are at once. Then delays double from
    ``first_s`` to ``max_s``. They begin at ``first_s`` again after a process that was ready for
    ``steady_s``, or after a start at once. After ``max_failed_starts`` processes in a row that
    never got ready, the service is not started again.
    """

    first_s: float = 0.5
    max_s: float = 30.0
    steady_s: float = 60.0
    retry_s: float = 2.0
    max_failed_starts: int = 3
    num_at_once: int = 0
    _ages_s: list[float] = field(default_factory=list)
    _last_s: float = 0.0
    _num_failed_starts: int = 0

    def delay_s(
        self,
        *,
        ready_for_s: float | None,
        keep_trying: bool = False,
        try_again: bool = False,
        planned: bool = False,
    ) -> float | None:
        """Seconds until the next start; None if there is none.

        ``ready_for_s``: how long the process had been ready, None if it never was.
        ``keep_trying``: there is always a next start. ``try_again``: the process ended because
        something else is missing for now; this is no failed start, and the next one follows after
        ``retry_s``. ``planned``: the process was told to end; if it had served for a second, the
        next one starts at once.
        """
        if try_again:
            return self.retry_s
        if planned and ready_for_s is not None and ready_for_s >= _SERVED_S:
            return 0.0
        self._num_failed_starts = self._num_failed_starts + 1 if ready_for_s is None else 0
        if self._num_failed_starts >= self.max_failed_starts and not keep_trying:
            return None
        steady = ready_for_s is not None and ready_for_s >= self.steady_s
        last_s = 0.0 if steady else self._last_s
        passed_s = (ready_for_s or 0.0) + self._last_s
        self._ages_s = [age for each in self._ages_s if (age := each + passed_s) < _MINUTE_S]
        if len(self._ages_s) < self.num_at_once:
            self._ages_s.append(0.0)
            self._last_s = 0.0
        else:
            self._last_s = min(last_s * 2 or self.first_s, self.max_s)
        return self._last_s
