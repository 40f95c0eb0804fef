"""The progress of a run, on stderr: bars on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """Base of the displays; shows nothing itself."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def begin(self, name: str, total: int) -> None:
        """Begin a phase of ``total`` requests; the previous phase is over."""

    def step(self, failed: bool = False) -> None:
        """Count one request of the phase as ended."""


class Lines(Progress):
    def say(self, text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)


class Bars(Progress):
    """``rich`` is a rich.progress.Progress, which ``shown`` starts and stops."""

    def __init__(self, rich: Any) -> None:
        self._rich = rich
        self._task: Any = None
        self._failed = 0

    def say(self, text: str) -> None:
        self._rich.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, name: str, total: int) -> None:
        if self._task is not None:
            self._rich.remove_task(self._task)
        self._failed = 0
        self._task = self._rich.add_task(name, total=total, failed="")

    def step(self, failed: bool = False) -> None:
        self._failed += failed
        said = f"{self._failed} failed" if self._failed else ""
        self._rich.update(self._task, advance=1, failed=said)


@contextmanager
def shown() -> Iterator[Progress]:
    """Bars where stderr is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        *progress.Progress.get_default_columns(),
        progress.TextColumn("[red]{task.fields[failed]}"),
    )
    # The bars take time of the process that measures: not more often than twice a second.
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, refresh_per_second=2) as bars:
        yield Bars(bars)
