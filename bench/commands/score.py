"""``baton bench score`` and ``baton bench compare``: results side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import result_file
from bench.compare import Side, compared, scored

Files = Annotated[list[Path], typer.Argument(help="Results of baton bench throughput.")]
Correctness = Annotated[
    list[Path] | None,
    typer.Option(help="Result of baton bench correctness; once for each file, in their order."),
]
CANNOT = 2


def score(files: Files, correctness: Correctness = None) -> None:
    """The weighted sum of verified tok/s over levels 1 to 64; 0 where correctness failed.

    Several files are shown side by side. Exit status: 0, 1 when a score is missing or 0, 2 when
    a file cannot be read.
    """
    sides = _sides(files, correctness or [])
    found = [scored(side) for side in sides]
    _show(compared(sides))
    line: dict[str, Any] = {"kind": "score", "scores": {s["name"]: s["score"] for s in found}}
    if len(sides) > 1:
        line["ratios"] = compared(sides)["score_ratios"]
    typer.echo(result_file.one_line({**line, "correct": [side.correct for side in sides]}))
    raise typer.Exit(not all(side.score() for side in sides))


def compare(files: Files, correctness: Correctness = None, html: Path | None = None) -> None:
    """Every level of two or more results, with ratios to the first."""
    if len(files) < 2:
        raise typer.BadParameter("files: a comparison takes at least two")
    sides = _sides(files, correctness or [])
    found = compared(sides)
    _show(found)
    if html is not None:
        from bench.html.page import render

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render([side.document for side in sides], [side.name for side in sides]))
    ratios = {str(level["level"]): level["ratios"] for level in found["levels"]}
    headline = {"names": [side.name for side in sides], "ratios": ratios}
    headline["score_ratios"] = found["score_ratios"]
    typer.echo(result_file.one_line({"kind": "compare", **headline}))


def _sides(files: Sequence[Path], correctness: Sequence[Path]) -> list[Side]:
    if correctness and len(correctness) != len(files):
        raise typer.BadParameter(f"correctness: {len(correctness)} for {len(files)} results")
    try:
        judged: list[bool | None] = [
            bool(result_file.load(path, "correctness")["ok"]) for path in correctness
        ]
        judged = judged or [None] * len(files)
        return [
            Side(name, result_file.load(path, "throughput"), correct)
            for name, path, correct in zip(_names(files), files, judged, strict=True)
        ]
    except result_file.ResultFileBad as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(CANNOT) from None


def _names(files: Sequence[Path]) -> list[str]:
    """The files' names, with their folders where they would be the same."""
    names = [path.stem for path in files]
    return names if len(set(names)) == len(names) else [str(path) for path in files]


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = [side["name"] for side in found["sides"]]
    table = Table(
        "at once", *[f"{n} tok/s" for n in names], *[f"× {n}" for n in names[1:]], box=None
    )
    for level in found["levels"]:
        rates = [_text(value, ",.0f") for value in level["total_tok_s"]]
        ratios = [_text(value, ".3f") for value in level["ratios"][1:]]
        table.add_row(str(level["level"]), *rates, *ratios)
    scores = [_text(side["score"], ",.0f") for side in found["sides"]]
    table.add_row("score", *scores, *[_text(value, ".3f") for value in found["score_ratios"][1:]])
    console = Console(stderr=True)
    console.print(table)
    for side in found["sides"]:
        for problem in side["problems"]:
            console.print(f"{side['name']}: {problem}", highlight=False, markup=False)
    for difference in found["differences"]:
        console.print(f"not the same: {difference}", highlight=False, markup=False)


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
