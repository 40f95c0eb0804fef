"""What a run shows while it goes on: bars on a terminal, plain lines elsewhere, on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def begin(self, name: str, total: int) -> None:
        """A phase of ``total`` requests begins; the one before it is over."""
        ...

    def step(self, *, failed: bool = False) -> None:
        """One of them has ended."""
        ...


class Silent:
    """For callers that show nothing."""

    def say(self, text: str) -> None:
        pass

    def begin(self, name: str, total: int) -> None:
        pass

    def step(self, *, failed: bool = False) -> None:
        pass


class Lines(Silent):
    """Plain lines: what is said, and no more."""

    def say(self, text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)


class Bars:
    """A bar for the phase under way; made by ``shown``, which starts and stops it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import (
            Progress as RichProgress,
        )

        self.rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=2,  # it takes the measuring process's time
        )
        self._task: int | None = None
        self._failed = 0

    def say(self, text: str) -> None:
        self.rich.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, name: str, total: int) -> None:
        if self._task is not None:
            self.rich.remove_task(self._task)  # type: ignore[arg-type]
        self._failed = 0
        self._task = self.rich.add_task(name, total=total, failed="")

    def step(self, *, failed: bool = False) -> None:
        self._failed += failed
        said = f"{self._failed} failed" if self._failed else ""
        self.rich.update(self._task, advance=1, failed=said)  # type: ignore[arg-type]


@contextmanager
def shown() -> Iterator[Progress]:
    """Bars where stderr is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    bars = Bars()
    with bars.rich:
        yield bars
