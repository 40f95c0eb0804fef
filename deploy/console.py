"""What ``baton up`` shows: progress and logs on stderr, the ready lines on stdout.

On a terminal the start-up is one moving line for each service; anywhere else, and for every log
line, it is plain text. Nothing here waits for a reader: see log_writer.py.
"""

import io
import sys
from typing import TextIO, cast

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


def console_for(writer: LogWriter) -> Console:
    """The console that suits where stderr goes, through ``writer``."""
    out = LogStream(writer, 1, sys.stdout.encoding) if sys.stdout else io.StringIO()
    err = LogStream(writer, 2, sys.stderr.encoding) if sys.stderr else io.StringIO()
    if not err.isatty():
        return Console(err, out)
    from rich.console import Console as RichConsole

    from deploy.terminal_console import TerminalConsole

    terminal = RichConsole(file=cast(TextIO, err))
    return Console(err, out) if terminal.is_dumb_terminal else TerminalConsole(terminal, out)
