"""``baton bench report``: result files as one page."""

from pathlib import Path
from typing import Annotated

import typer

from bench import result_file


def report(
    files: Annotated[list[Path], typer.Argument(help="Results of baton bench, of any kind.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
    model: Annotated[
        str | None,
        typer.Option(
            help="Which model was served, where its served name does not say so; published figures "
            "are shown beside those of the same one."
        ),
    ] = None,
) -> None:
    """One self-contained HTML page of one or more results. Exit status: 0, or 2 for a bad file."""
    from bench.html.page import render

    try:
        documents = [result_file.load(path) for path in files]
    except result_file.ResultFileBad as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    names = None if len(files) == 1 else [path.stem for path in files]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(documents, names, model))
    typer.echo(result_file.one_line({"kind": "report", "file": str(out), "results": len(files)}))
