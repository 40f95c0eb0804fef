"""Charts: what is drawn where, checked as XML."""

import xml.etree.ElementTree as ET

import pytest

from bench.html.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Line, chart, number

FLOOR = HEIGHT - BOTTOM


def parsed(drawn: str) -> ET.Element:
    return ET.fromstring(f"<div>{drawn}</div>")


def points(drawn: str) -> list[list[tuple[float, float]]]:
    lines = parsed(drawn).iter("polyline")
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in line.attrib["points"].split())]
        for line in lines
    ]


def test_a_line_from_corner_to_corner() -> None:
    drawn = chart([Line("a", [(0, 0), (5, 50), (10, 100)])], Axis("x"), Axis("y"))
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + FLOOR) / 2
    assert points(drawn) == [[(LEFT, FLOOR), middle, (WIDTH - RIGHT, TOP)]]


def test_logarithmic_axes_are_even_in_ratios() -> None:
    x, y = Axis("x", "log", (1, 2, 4)), Axis("y", "log")
    ((a, b, c),) = points(chart([Line("a", [(1, 10), (2, 100), (4, 1000)])], x, y))
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.2)
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.2)


def test_gaps_and_what_a_logarithm_lacks_are_left_out() -> None:
    line = Line("a", [(1, None), (2, 0.0), (3, 5.0), (4, 7.0)])
    assert len(points(chart([line], Axis("x"), Axis("y", "log")))[0]) == 2


def test_nothing_to_draw() -> None:
    assert "nothing to draw" in chart([], Axis("x"), Axis("y"))
    assert "nothing to draw" in chart([Line("a", [(1, None)])], Axis("x"), Axis("y"))


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_single_point_and_a_flat_line(value: float) -> None:
    assert points(chart([Line("a", [(1, value)])], Axis("x"), Axis("y")))
    assert points(chart([Line("a", [(1, value), (2, value)])], Axis("x"), Axis("y")))


def test_names_are_escaped_and_several_lines_have_a_legend() -> None:
    drawn = chart([Line("<a&b>", [(1, 1)]), Line("c", [(1, 2)], quiet=True)], Axis("x"), Axis("y"))
    keys = [key for key in parsed(drawn).iter("span") if key.attrib.get("class") == "key"]
    assert ["".join(key.itertext()) for key in keys] == ["<a&b>", "c"]


@pytest.mark.parametrize(
    ("value", "shown"), [(13437.2, "13,437"), (2.391, "2.39"), (0, "0"), (0.00041, "4.1e-04")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown
