"""``baton bench score`` and ``baton bench compare``: throughput results side by side.

A folder of results is one side, and its files are repetitions: figures are their medians.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from bench import result_file
from bench.harness.html.runs import Ratio, ratio

WEIGHTS: Mapping[int, int] = {1: 1, 2: 1, 4: 2, 8: 2, 16: 4, 32: 4, 64: 8}
_MAY_DIFFER = ("seed", "levels")  # seeds differ in any two runs, levels are shown one by one

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Results of baton bench throughput, or folders with the repetitions of one run."
    ),
]
Correctness = Annotated[
    list[Path] | None,
    typer.Option(help="Result of baton bench correctness; once for each run, in their order."),
]


class ScoreFailed(Exception):
    """No score can be computed; the message says what is missing."""


def weighted(tok_s: Mapping[int, float], *, correct: bool = True) -> float:
    """The score of a run: the sum of weight x total tok/s over the seven levels; 0 if the answers
    are wrong. Raises ScoreFailed if a level is missing: a sum of fewer levels is another figure."""
    if missing := [level for level in WEIGHTS if level not in tok_s]:
        raise ScoreFailed(f"no result for level {', '.join(map(str, missing))}")
    return sum(weight * tok_s[level] for level, weight in WEIGHTS.items()) if correct else 0.0


@dataclass(frozen=True)
class Side:
    """One run to compare, with a result for each of its repetitions; ``correct`` is None without a
    correctness result."""

    name: str
    documents: Sequence[dict[str, Any]]
    correct: bool | None = None

    @property
    def rates(self) -> dict[int, list[float]]:
        """Verified total tok/s of each repetition by level, for levels in which every request was
        sent in all of them. With failures, only completed requests count."""
        each = [
            {
                level["concurrency"]: level["total_tok_s"]
                for level in document["results"].get("levels", [])
                if level.get("total_tok_s") is not None and not level["not_sent"]
            }
            for document in self.documents
        ]
        whole = set(each[0]).intersection(*each[1:])
        return {level: [rates[level] for rates in each] for level in sorted(whole)}

    @property
    def tok_s(self) -> dict[int, float]:
        """The medians of ``rates``."""
        return {level: median(rates) for level, rates in self.rates.items()}

    @property
    def problems(self) -> list[str]:
        """Why its results are not good ones."""
        found = []
        for document in self.documents:
            found += [f"stopped: {document['stopped']}"] if document["stopped"] else []
            found += document["problems"]
        return found

    def score(self) -> float | None:
        """The score; None if a level is missing."""
        try:
            return weighted(self.tok_s, correct=self.correct is not False)
        except ScoreFailed:
            return None


def ratios(values: Sequence[float | None]) -> list[float | None]:
    """The ratio of each value to the first."""
    first = values[0]
    return [value / first if value is not None and first else None for value in values]


def level_ratios(sides: Sequence[Side]) -> dict[int, list[Ratio | None]]:
    """The ratio of each side's total tok/s to the first side's, for every level that any side
    has."""
    rates = [side.rates for side in sides]
    levels = sorted(set().union(*rates))
    return {
        level: [ratio(rates[0].get(level, []), each.get(level, [])) for each in rates]
        for level in levels
    }


def differences(sides: Sequence[Side]) -> list[str]:
    """Settings that differ, so that the sides measure different things."""
    settings = [document["settings"] for side in sides for document in side.documents]
    found = []
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [each.get(name) for each in settings]
        if name not in _MAY_DIFFER and any(value != values[0] for value in values):
            found.append(f"{name}: {', '.join(map(str, values))}")
    return found


def score(files: Files, correctness: Correctness = None) -> None:
    """The weighted sum of verified tok/s over levels 1 to 64; 0 where correctness failed.

    Several files are shown side by side. Exit status: 0, 1 when a score is missing or 0, 2 when
    a file cannot be read.
    """
    sides = _sides(files, correctness or [])
    _show(sides)
    scores = [side.score() for side in sides]
    names = [side.name for side in sides]
    line: dict[str, Any] = {"kind": "score", "scores": dict(zip(names, scores, strict=True))}
    if len(sides) > 1:
        line["ratios"] = ratios(scores)
    typer.echo(result_file.one_line({**line, "correct": [side.correct for side in sides]}))
    raise typer.Exit(not all(scores))


def compare(files: Files, correctness: Correctness = None) -> None:
    """Every level of two or more results, with ratios to the first, and their spread where a run
    was repeated."""
    if len(files) < 2:
        raise typer.BadParameter("files: a comparison takes at least two")
    sides = _sides(files, correctness or [])
    _show(sides)
    found: dict[str, Any] = {"kind": "compare", "names": [side.name for side in sides]}
    by_level = level_ratios(sides)
    found["ratios"] = {
        str(level): [each and each.median for each in row] for level, row in by_level.items()
    }
    if any(len(side.documents) > 1 for side in sides):
        found["spread"] = {
            str(level): [each and [each.lowest, each.highest] for each in row]
            for level, row in by_level.items()
        }
    found["score_ratios"] = ratios([side.score() for side in sides])
    typer.echo(result_file.one_line(found))


def expand(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Files by the name of their run. A folder is a run of its own name, and its JSON files are the
    repetitions; a file is a run of its own. Raises ResultFileBad for a folder without any."""
    files = [(path, _files(path)) for path in paths]
    names = [path.resolve().name if path.is_dir() else path.stem for path, _ in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [(name, file) for name, (_, found) in zip(names, files, strict=True) for file in found]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise result_file.ResultFileBad(f"{path}: a folder without results (*.json)")
    return found


def _sides(files: Sequence[Path], correctness: Sequence[Path]) -> list[Side]:
    if correctness and len(correctness) != len(files):
        raise typer.BadParameter(f"correctness: {len(correctness)} for {len(files)} results")
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        correct: list[bool | None] = [None] * len(files)
        for index, path in enumerate(correctness):
            correct[index] = bool(result_file.load(path, "correctness")["ok"])
        for name, path in expand(files):
            found.setdefault(name, []).append(result_file.load(path, "throughput"))
    except result_file.ResultFileBad as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    return [
        Side(name, documents, judged)
        for (name, documents), judged in zip(found.items(), correct, strict=True)
    ]


def _show(sides: Sequence[Side]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = [side.name for side in sides]
    columns = ["at once", *[f"{n} tok/s" for n in names], *[f"× {n}" for n in names[1:]]]
    table = Table(*columns, box=None)
    for at, row in level_ratios(sides).items():
        table.add_row(
            str(at),
            *_rates(side.tok_s.get(at) for side in sides),
            *["–" if each is None else str(each) for each in row[1:]],
        )
    scores = [side.score() for side in sides]
    score_ratios = ["–" if value is None else f"{value:.3f}" for value in ratios(scores)[1:]]
    table.add_row("score", *_rates(scores), *score_ratios)
    console = Console(stderr=True)
    console.print(table)
    for side in sides:
        for problem in side.problems:
            console.print(f"{side.name}: {problem}", highlight=False, markup=False)
    for difference in differences(sides):
        console.print(f"not the same: {difference}", highlight=False, markup=False)


def _rates(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:,.0f}" for value in values]
