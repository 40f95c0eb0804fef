"""What ``baton up`` shows: progress and logs on stderr, the ready line on stdout.

On a terminal the start-up is one moving line a service; anywhere else, and for every log line,
it is plain text. Nobody waits for a reader here: see outlet.py.
"""

import io
import sys
from typing import Protocol, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.outlet import Outlet, OutletText


class Lines(Protocol):
    """Where whole lines go."""

    def write(self, text: str, /) -> int: ...


class Display(Protocol):
    """Where the supervisor reports; ``name`` is a service's."""

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        """A service's state has changed."""

    def log(self, name: str, line: str) -> None:
        """A service has printed a line."""

    def say(self, line: str) -> None:
        """The supervisor itself has something to say."""

    def ready(self, lines: list[str]) -> None:
        """Start-up is over; ``lines`` go to stdout, the ready line last."""

    def close(self) -> None:
        """Nothing moves any more; lines may still come."""


def display(outlet: Outlet) -> Display:
    """The display that suits where stderr goes, through ``outlet``."""
    out = OutletText(outlet, 1, sys.stdout.encoding) if sys.stdout else io.StringIO()
    err = OutletText(outlet, 2, sys.stderr.encoding) if sys.stderr else io.StringIO()
    console = Console(file=cast(TextIO, err))
    moves = console.is_terminal and not console.is_dumb_terminal
    return Moving(console, out) if moves else Plain(err, out)


class Plain:
    """Lines. A status repeats only when its words change or a quarter more is done."""

    def __init__(self, err: Lines, out: Lines) -> None:
        self._err = err
        self._out = out
        self._shown: dict[str, tuple[str, int]] = {}

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        words = text.rstrip("0123456789%. ") if fraction is not None else text
        shown = (words, int((fraction or 0.0) * 4))
        if self._shown.get(name) != shown:
            self._shown[name] = shown
            self.say(f"{name}: {text}")

    def log(self, name: str, line: str) -> None:
        self.say(f"{name} | {line}")

    def say(self, line: str) -> None:
        self._err.write(f"{line}\n")

    def ready(self, lines: list[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        pass


class Moving:
    """A table that moves during start-up, redrawn at each report (no thread draws it)."""

    def __init__(self, console: Console, out: Lines) -> None:
        self._console = console
        self._out = out
        self._live: Live | None = Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._rows: dict[str, tuple[str, float | None]] = {}
        self._live.start()

    def status(self, name: str, text: str, fraction: float | None = None) -> None:
        if self._live is None:
            self._print(f"{name}: {text}", "bold")
            return
        self._rows[name] = (text, fraction)
        self._live.update(self._table(), refresh=True)

    def log(self, name: str, line: str) -> None:
        self._print(f"{name} | {line}", "dim")

    def say(self, line: str) -> None:
        self._print(line, "bold")

    def ready(self, lines: list[str]) -> None:
        self.close()
        self._out.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: str, style: str) -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, (text, fraction) in self._rows.items():
            done = text == "ready"
            bar = ProgressBar(total=1.0, completed=1.0 if done else fraction or 0.0, width=24)
            table.add_row(Text(name, style="bold"), bar, Text(text, style="green" if done else ""))
        return table
