"""What goes to the terminal, or whoever reads stdout and stderr: written by a thread of its own.

A pipe that nobody reads, or a terminal that was stopped with Ctrl-S, would otherwise stop whoever
writes to it, and then those whose output it passes on. Making the descriptors non-blocking is no
way out: other processes share them.
"""

import contextlib
import io
import os
import select
import threading
from collections import deque

PENDING_BYTES = 1 << 20
"""What may wait for a reader; what is written beyond that is dropped, and said to be."""


class Outlet:
    """Writes to file descriptors in the order of ``put``, from construction to ``close``."""

    def __init__(self, pending_bytes: int = PENDING_BYTES) -> None:
        self._max_bytes = pending_bytes
        self._num_bytes = 0
        self._pending: deque[tuple[int, bytes]] = deque()
        self._dropped: dict[int, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a write that never ends must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Have ``data``, whole lines, written to ``fd``; never waits and never fails."""
        with self._changed:
            if self._closed or self._num_bytes + len(data) > self._max_bytes:
                self._dropped[fd] = self._dropped.get(fd, 0) + data.count(b"\n")
                return
            self._say_dropped()
            self._append(fd, data)

    def close(self, within_s: float) -> None:
        """Let what was put be written, for so many seconds; nothing can be put any more."""
        with self._changed:
            self._say_dropped()
            self._closed = True
            self._changed.notify()
        self._thread.join(within_s)

    def _say_dropped(self) -> None:
        for fd, num_lines in self._dropped.items():
            self._append(fd, f"{num_lines} lines dropped: nobody read them\n".encode())
        self._dropped.clear()

    def _append(self, fd: int, data: bytes) -> None:
        self._pending.append((fd, data))
        self._num_bytes += len(data)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                fd, data = self._pending[0]
            with contextlib.suppress(OSError):  # its reader has gone: that stops nobody
                _write(fd, data)
            with self._changed:
                self._pending.popleft()
                self._num_bytes -= len(data)


class OutletText(io.TextIOBase):
    """A text stream for ``print`` and rich, over one descriptor of an outlet."""

    def __init__(self, outlet: Outlet, fd: int, encoding: str) -> None:
        self._outlet = outlet
        self._fd = fd
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._outlet.put(self._fd, text.encode(self._encoding, errors="backslashreplace"))
        return len(text)


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process has made it non-blocking
            select.select([], [fd], [])
