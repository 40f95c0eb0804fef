"""One process of a service, from its start until it is reaped."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable

from deploy.die_with_parent import die_with_parent
from deploy.services import Service
from telemetry.last_words import fatal_reason

SILENCE_S = 600.0
"""A process that is not ready and reports no progress for this long counts as hung."""
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_LAST_LINES = 20


class ManagedProcess:
    """A running process, the leader of a process group; it dies with this process.

    Create it on the main thread (die_with_parent.py), then await ``run`` once. ``status`` is the
    last progress that it reported, ``error`` why it cannot go on, if it has said so.
    """

    def __init__(self, service: Service, silence_s: float = SILENCE_S) -> None:
        """Raises OSError when the process cannot be started."""
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
        """The process has reported ``status``; it may be silent for ``silence_s`` again, and for
        ever once it is ready."""
        self.status = status
        if ready and self._ready_at is None:
            self._ready_at = time.monotonic()
        if self._silence is not None and not self._silence.expired():
            now = asyncio.get_running_loop().time()
            self._silence.reschedule(None if self.ready else now + self._silence_s)

    async def run(self, on_line: Callable[[str], None]) -> int:
        """Pass each line of its output to ``on_line`` until it is dead, and end the helpers that it
        leaves. Returns its exit code, or minus the number of the signal that killed it."""
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
        self.kill()  # its helpers
        while self._read(on_line):
            pass  # the last output; a helper that has left the group and keeps it is not awaited
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    # Valid until ``run`` returns: until the process is reaped, no other one gets its number.

    def terminate(self) -> None:
        """Ask the process to end. Ending its helpers is its own task."""
        os.kill(self.pid, signal.SIGTERM)

    def interrupt(self) -> None:
        """Ask a coordinator that is ready to end without a successor."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process and its helpers now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self, on_line: Callable[[str], None]) -> bool:
        """Pass on the lines that can be read now; whether there may be more."""
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
    """
    >>> describe_exit(-9)
    'killed by SIGKILL'
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
