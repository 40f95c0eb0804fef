"""The start-up on a terminal: one moving line for each service, drawn at each report without a
thread, and log lines that scroll by above.

Apart from console.py, which is imported at every start: to import rich takes a tenth of a second.
"""

import io

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from deploy.console import Console


class TerminalConsole(Console):
    """A table that moves during the start-up."""

    def __init__(self, console: RichConsole, out: io.TextIOBase) -> None:
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
