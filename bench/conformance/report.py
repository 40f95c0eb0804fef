"""The checks' results: as a table for people, and for the file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from bench.conformance.check import Result, Verdict

_WIDTH = 160  # where there is no terminal to fit into
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.NOT_OFFERED: "yellow"}


@dataclass(frozen=True)
class Report:
    results: Sequence[Result]

    def problems(self) -> list[str]:
        """Every required check that did not pass."""
        return [
            f"{one.suite}: {one.check.name}: {one.verdict.value}: {one.detail}"
            for one in self.results
            if one.decides_failure
        ]

    def headline(self) -> dict[str, Any]:
        counts = Counter(one.verdict for one in self.results)
        return {
            **{verdict.value.replace(" ", "_"): counts[verdict] for verdict in Verdict},
            "required_missed": len(self.problems()),
        }

    def json(self) -> dict[str, Any]:
        return {
            **self.headline(),
            "checks": [
                {
                    "suite": one.suite,
                    "name": one.check.name,
                    "need": one.check.need.value,
                    "source": one.check.source.value,
                    "verdict": one.verdict.value,
                    "detail": one.detail,
                    "seconds": one.seconds,
                }
                for one in self.results
            ],
        }

    def print_table(self, file: IO[str]) -> None:
        """A row a check; what failed keeps its detail, what passed only a short one."""
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("", "check", "need", "asked for by", ""):
            table.add_column(title, overflow="fold")
        for one in self.results:
            name, need, source = one.check.name, one.check.need.value, one.check.source.value
            verdict = f"[{_COLOURS[one.verdict]}]{one.verdict.value}[/]"
            shown = one.detail if one.verdict is Verdict.FAIL else one.detail[:80]
            table.add_row(verdict, f"{one.suite}: {name}", need, source, _plain(shown))
        width = None if file.isatty() else _WIDTH
        Console(file=file, highlight=False, width=width).print(table)


def _plain(text: str) -> str:
    """A server's words are no markup."""
    return text.replace("[", r"\[")
