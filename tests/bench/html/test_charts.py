"""Charts: what is drawn, checked as XML."""

import builtins
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.harness.html.charts import Chart, Line
from bench.harness.html.page import cell
from bench.result_file import write
from tests.bench.documents import throughput_document

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(drawn).iter(f"{SVG}text")]


def test_labels_ticks_and_the_names_of_several_lines_are_text() -> None:
    lines = [Line("<a&b>", [(1, 10), (2, 20)]), Line("c", [(1, 2)], quiet=True)]
    found = texts(Chart(lines, "at once", "tok/s", x_ticks=[1, 2]).svg())
    assert {"<a&b>", "c", "at once", "tok/s", "1", "2"} <= {*found}
    assert "only" not in texts(Chart([Line("only", [(1, 2)])], "x", "y").svg())


def test_ticks_are_whole_where_all_x_are() -> None:
    points = [(x, 10.0**x) for x in range(1, 5)]
    found = texts(Chart([Line("a", points)], "turn", "ms", log_y=True).svg())
    assert {"1", "2", "3", "4"} <= {*found}
    assert not any("." in text for text in found)


def test_gaps_and_what_a_logarithm_lacks_are_left_out() -> None:
    drawn = Chart([Line("a", [(1, None), (2, 0.0), (3, 5.0)])], "x", "y", log_y=True).svg()
    assert ET.fromstring(drawn) is not None
    assert Chart([Line("a", [(1, 0.0)])], "x", "y", log_y=True).svg() == ""


def test_nothing_to_draw() -> None:
    assert Chart([], "x", "y").svg() == Chart([Line("a", [(1, None)])], "x", "y").svg() == ""


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_single_point_and_a_flat_line(value: float) -> None:
    for points in ([(1, value)], [(1, value), (2, value)]):
        assert ET.fromstring(Chart([Line("a", points)], "x", "y").svg()) is not None


def test_files_of_a_chart() -> None:
    lines = [Line("a, b", [(1, 10.5), (2, None)]), Line("c", [(2, 2 / 3)], band=[(2, 0.5, 1.0)])]
    drawn = Chart(lines, "at once", "tok/s", x_ticks=[1, 2])
    assert drawn.csv() == 'at once,"a, b",c\n1,10.5,\n2,,0.666667\n'
    assert drawn.file("png").startswith(b"\x89PNG")
    svg = ET.fromstring(drawn.file("svg"))
    assert svg.get("width"), "a file has a size of its own"
    assert drawn.file("svg") == drawn.file("svg")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(13437.2, "13,437"), (2.391, "2.39"), (0.0, "0"), (0.00041, "4.1e-04"), (None, "–")],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert cell(value) == shown


def test_without_matplotlib_a_report_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = builtins.__import__

    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return there(name, *args, **kwargs)  # type: ignore[arg-type]

    result = tmp_path / "r.json"
    write(result, throughput_document())
    monkeypatch.setattr(builtins, "__import__", missing)
    for command in (["report", str(result)], ["throughput", "--html", str(tmp_path / "r.html")]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2
        assert "pip install -e '.[bench]'" in " ".join(found.output.replace("│", " ").split())
