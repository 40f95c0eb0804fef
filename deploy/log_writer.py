"""Writes to stdout and stderr on a thread of its own.

A pipe that is not read, or a terminal stopped with Ctrl-S, blocks a process that writes to it, and
then those whose output that process passes on. Non-blocking descriptors would not help: other
processes share them.
"""

import contextlib
import io
import os
import select
import threading
from collections import defaultdict, deque

MAX_PENDING_BYTES = 1 << 20
"""What may wait for the reader of a descriptor; lines beyond that are dropped and counted. So what
services print on stderr cannot crowd out the ready line on stdout."""


class LogWriter:
    """Writes to file descriptors in the order of ``put``, until ``close``."""

    def __init__(self, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes: defaultdict[int, int] = defaultdict(int)
        self._pending: deque[tuple[int, bytes]] = deque()
        self._num_dropped: dict[int, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a write that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Have ``data``, whole lines, written to ``fd``. Never waits and never fails."""
        with self._changed:
            if self._closed or self._pending_bytes[fd] + len(data) > self._max_pending_bytes:
                self._num_dropped[fd] = self._num_dropped.get(fd, 0) + data.count(b"\n")
                return
            self._report_dropped()
            self._append(fd, data)

    def close(self, within_s: float) -> None:
        """Wait at most ``within_s`` until all is written; lines put from now on are dropped."""
        with self._changed:
            self._report_dropped()
            self._closed = True
            self._changed.notify()
        self._thread.join(within_s)

    def _report_dropped(self) -> None:
        for fd, num_lines in self._num_dropped.items():
            self._append(fd, f"{num_lines} lines dropped: this output was not read\n".encode())
        self._num_dropped.clear()

    def _append(self, fd: int, data: bytes) -> None:
        self._pending.append((fd, data))
        self._pending_bytes[fd] += len(data)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                fd, data = self._pending[0]
            with contextlib.suppress(OSError):  # its reader is gone
                _write(fd, data)
            with self._changed:
                self._pending.popleft()
                self._pending_bytes[fd] -= len(data)


class LogStream(io.TextIOBase):
    """A text stream for ``print`` and rich, over one descriptor of a writer."""

    def __init__(self, writer: LogWriter, fd: int, encoding: str = "utf-8") -> None:
        self._writer = writer
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
        self._writer.put(self._fd, text.encode(self._encoding, errors="backslashreplace"))
        return len(text)


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process has made it non-blocking
            select.select([], [fd], [])
