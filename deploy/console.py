"""What ``baton up`` shows: progress and logs on stderr, the ready lines on stdout.

On a terminal the start-up is one moving line for each service; anywhere else, and for every log
line, it is plain text. Nothing here waits for a reader: see log_writer.py.
"""

import io
import sys
from typing import TextIO, cast

from rich import console as rich_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from deploy.log_writer import LogStream, LogWriter


class Console:
    """Plain lines. A status is repeated only when its words change or a quarter more is done."""

    def __init__(self, err: io.TextIOBase, out: io.TextIOBase) -> None:
        self._err = err
        self._out = out
        self._shown: dict[str, tuple[str, int]] = {}

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        """The state of service ``name`` has changed; ``fraction`` of a long step is done."""
        words = text.rstrip("0123456789%. ") if fraction is not None else text
        shown = (words, int((fraction or 0.0) * 4))
        if self._shown.get(name) != shown:
            self._shown[name] = shown
            self.say(f"{name}: {text}")

    def log(self, name: str, line: str) -> None:
        """Service ``name`` has printed a line."""
        self._err.write(f"{name} | {line}\n")

    def say(self, line: str) -> None:
        """A line of the supervisor's own."""
        self._err.write(f"{line}\n")

    def ready(self, lines: list[str]) -> None:
        """The start-up is over; ``lines`` go to stdout, the ready line last."""
        self.close()
        self._out.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """Nothing moves any more; lines may still come."""


class TerminalConsole(Console):
    """A table that moves during the start-up; it is drawn at each report, without a thread."""

    def __init__(self, console: rich_console.Console, out: io.TextIOBase) -> None:
        super().__init__(io.StringIO(), out)
        self._console = console
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
        self._table.update(self._rows[name], description=text, completed=completed, refresh=True)

    def log(self, name: str, line: str) -> None:
        self._print(f"{name} | {line}", "dim")

    def say(self, line: str) -> None:
        self._print(line, "bold")

    def close(self) -> None:
        if self._table is not None:
            self._table.stop()
            self._table = None

    def _print(self, line: str, style: str) -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)


def console_for(writer: LogWriter) -> Console:
    """The console that suits where stderr goes, through ``writer``."""
    out = LogStream(writer, 1, sys.stdout.encoding) if sys.stdout else io.StringIO()
    err = LogStream(writer, 2, sys.stderr.encoding) if sys.stderr else io.StringIO()
    console = rich_console.Console(file=cast(TextIO, err))
    moves = console.is_terminal and not console.is_dumb_terminal
    return TerminalConsole(console, out) if moves else Console(err, out)
