"""The result file of one run of a benchmark, written while it measures."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import typer

from bench import result_file
from bench.environment import describe

SHOWN = 3000
"""Characters of a problem that the terminal shows."""


class Recording:
    """The result of one run of ``python -m MODULE``. The run fills ``results``, by the name of the
    part that was measured, and ``problems``: why the result is not good. The kind of the result is
    the module's own name. A run that is not good, or not whole yet, never replaces an earlier
    result (``result_file.place``)."""

    def __init__(
        self,
        module: str,
        out: Path,
        settings: dict[str, Any],
        server: dict[str, Any] | None = None,
    ) -> None:
        self.environment = describe(sys.argv[1:], module)
        self.results: dict[str, Any] = {}
        self.problems: list[str] = []
        self._kind = module.rpartition(".")[2].replace("_", "-")
        self._out, self._meanwhile = out, result_file.place(out, {"ok": False})
        self._settings, self._server = settings, server

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Add a row to the rows of a part, and print it."""
        self.results.setdefault(part, []).append(row)
        shown = (f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in row.items())
        print(", ".join(shown), flush=True)

    def save(self, stopped: str | None = "has not ended yet") -> bool:
        """Write the results so far; True if they are good. ``stopped``: why the run is not whole,
        None once it is."""
        found = result_file.document(
            self._kind,
            environment=self.environment,
            server=self._server,
            settings=self._settings,
            results=self.results,
            stopped=stopped,
            problems=self.problems,
        )
        good: bool = found["ok"]
        result_file.write(self._out if good else self._meanwhile, found)
        if good and self._meanwhile != self._out:
            self._meanwhile.unlink(missing_ok=True)
        return good

    def end(self, stopped: str | None = None) -> NoReturn:
        """Write the result, print its problems, and end the command: with status 1 if the result
        is not good, else with 0."""
        good = self.save(stopped)
        for problem in [*filter(None, [stopped]), *self.problems]:
            print("problem:", problem[:SHOWN])
        raise typer.Exit(not good)
