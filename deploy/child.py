"""One process of a service, from spawn to reaped."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

from deploy.services import Service

_LIFELINE = Path(__file__).resolve().parent / "lifeline.py"
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_FATAL = re.compile(r"(?:[\d:.]+ CRITICAL \S+ )?error: (.*)")


class Child:
    """A running process in a group of its own; it dies with this process (lifeline.py).

    ``pidfd`` is readable once it is dead, ``output`` (non-blocking) when it has printed. Both
    are valid until ``reap``. Must be made on the main thread, see lifeline.py.
    """

    def __init__(self, service: Service) -> None:
        listen = [] if service.listen_fd is None else [service.listen_fd]
        lifeline = [sys.executable, "-I", "-S", str(_LIFELINE), "KILL", str(os.getpid())]
        self._process = subprocess.Popen(
            [*lifeline, *(f"--listen={fd}" for fd in listen), *service.argv],
            env=service.env,
            pass_fds=listen,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # a Ctrl-C in the terminal is for the supervisor alone
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.error = ""  # why it cannot go on, once it has said so
        self.output_ended = False
        self._partial = b""

    def read_lines(self) -> list[str]:
        """Whole lines printed since the last call; sets ``output_ended`` at the end."""
        try:
            chunk = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return []
        self.output_ended = not chunk
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        if self.output_ended or len(self._partial) >= _MAX_LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        lines = [line.decode(errors="replace").rstrip() for line in whole if line.strip()]
        for line in lines:
            self.error = fatal_reason(line) or self.error
        return lines

    def read_rest(self) -> list[str]:
        """What a dead child still had to say. A helper that holds its output is not waited for."""
        lines: list[str] = []
        while not self.output_ended and select.select([self.output], [], [], 0)[0]:
            lines += self.read_lines()
        return lines

    def terminate(self) -> None:
        """Ask the service to end; its helpers are its own to end."""
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """Ask a coordinator that is ready to end without a successor."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process and its helpers now. Safe until ``reap``: a zombie keeps its number."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Collect a dead child, ending helpers it left; minus the signal's number if killed."""
        self.kill()
        code = self._process.wait()
        os.close(self.pidfd)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def fatal_reason(line: str) -> str:
    """Why a service cannot go on, if that is what the line of its log says, in either format
    (telemetry/last_words.py); else empty.

    >>> fatal_reason("12:00:01.234 CRITICAL prefill error: port: -1 is not between 0 and 65535")
    'port: -1 is not between 0 and 65535'
    """
    if line.startswith("{") and "critical" in line:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            line = told["message"] if told["level"] == "critical" else ""
    found = _FATAL.match(line)
    return found[1] if found else ""


def describe_exit(code: int) -> str:
    """What happened, for people.

    >>> describe_exit(-9)
    'killed by SIGKILL'
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
