"""What ``baton up`` shows: progress and logs on stderr, the ready lines on stdout.

On a terminal the start-up is one moving line for each service; anywhere else, and for every log
line, it is plain text. Nothing here waits for a reader: a thread writes to stdout and stderr. A
pipe that is not read, or a terminal stopped with Ctrl-S, blocks a process that writes to it, and
then the processes whose output it passes on. Non-blocking descriptors would not help: other
processes share them.
"""

import contextlib
import io
import os
import select
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import TaskID
    from rich.text import Text

MAX_PENDING_BYTES = 1 << 20
"""What may wait for the reader of a descriptor; lines beyond that are dropped and counted. So what
services print on stderr cannot crowd out the ready line on stdout."""


class Console:
    """Plain lines. A status is repeated only when its words change or a quarter more is done."""

    def __init__(self, err: io.TextIOBase, out: io.TextIOBase) -> None:
        self._err = err
        self._out = out
        self._shown: dict[str, tuple[str, int]] = {}

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        """Show the state of service ``name``; ``fraction`` of a long step is done."""
        words = text.rstrip("0123456789%. ") if fraction is not None else text
        shown = (words, int((fraction or 0.0) * 4))
        if self._shown.get(name) != shown:
            self._shown[name] = shown
            self.say(f"{name}: {text}")

    def log(self, name: str, line: str) -> None:
        """Show a line that service ``name`` has printed."""
        self._err.write(f"{name} | {line}\n")

    def say(self, line: str) -> None:
        """Show a line of the supervisor's own."""
        self._err.write(f"{line}\n")

    def ready(self, lines: list[str]) -> None:
        """End the start-up; ``lines`` go to stdout, the ready line last."""
        self.close()
        self._out.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """End whatever moves; lines may still come."""


class TerminalConsole(Console):
    """A table that moves during the start-up; log lines scroll by above it. ``later`` calls a
    function after some seconds, as ``call_later`` of an event loop does: one drawing shows all
    that has come within ``REDRAW_S``, since each takes milliseconds."""

    REDRAW_S = 0.2

    def __init__(
        self, console: "RichConsole", out: io.TextIOBase, later: Callable[..., object]
    ) -> None:
        # To import rich takes a tenth of a second, which only a start on a terminal spends.
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(io.StringIO(), out)
        self._console = console
        self._later = later
        self._is_due = False
        self._lines: list[Text] = []
        self._rows: dict[str, TaskID] = {}
        self._table: Progress | None = Progress(
            TextColumn("{task.fields[name]}", style="bold", markup=False),
            BarColumn(bar_width=24, finished_style="green"),
            TextColumn("{task.description}", markup=False),
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._table.start()

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        if self._table is None:
            self._print(f"{name}: {text}", "bold")
            return
        if name not in self._rows:
            self._rows[name] = self._table.add_task(text, total=1.0, name=name)
        completed = 1.0 if text == "ready" else fraction or 0.0
        self._table.update(self._rows[name], description=text, completed=completed)
        self._draw_soon()

    def log(self, name: str, line: str) -> None:
        self._print(f"{name} | {line}", "dim")

    def say(self, line: str) -> None:
        self._print(line, "bold")

    def close(self) -> None:
        if self._table is not None:
            self._draw_lines()
            self._table.stop()
            self._table = None

    def _print(self, line: str, style: str) -> None:
        from rich.text import Text

        self._lines.append(Text(line, style=style))
        if self._table is None:
            self._draw_lines()
        else:
            self._draw_soon()

    def _draw_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self.REDRAW_S, self._draw)

    def _draw(self) -> None:
        self._is_due = False
        if self._table is not None:
            self._draw_lines()
            self._table.refresh()

    def _draw_lines(self) -> None:
        if self._lines:
            self._console.print(*self._lines, sep="\n", soft_wrap=True)
            self._lines.clear()


def console_for(writer: "LogWriter", later: Callable[..., object]) -> Console:
    """The console that suits where stderr goes, through ``writer``; ``later``: of
    TerminalConsole."""
    out = LogStream(writer, 1, sys.stdout.encoding) if sys.stdout else io.StringIO()
    err = LogStream(writer, 2, sys.stderr.encoding) if sys.stderr else io.StringIO()
    if not err.isatty():
        return Console(err, out)
    from rich.console import Console as RichConsole

    terminal = RichConsole(file=cast(TextIO, err))
    return Console(err, out) if terminal.is_dumb_terminal else TerminalConsole(terminal, out, later)


class LogWriter:
    """A thread that writes to file descriptors in the order of ``put``, until ``close``."""

    def __init__(self, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes: defaultdict[int, int] = defaultdict(int)
        self._pending: deque[tuple[int, bytes]] = deque()
        self._num_dropped: dict[int, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        # A daemon thread: a write that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Queue ``data``, whole lines, for ``fd``. Never waits and never fails."""
        with self._changed:
            if self._closed or self._pending_bytes[fd] + len(data) > self._max_pending_bytes:
                self._num_dropped[fd] = self._num_dropped.get(fd, 0) + data.count(b"\n")
                return
            self._report_dropped()
            self._append(fd, data)

    def close(self, within_s: float) -> None:
        """Wait up to ``within_s`` until all is written. Later lines are dropped."""
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
