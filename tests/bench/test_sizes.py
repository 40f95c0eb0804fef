"""docs/sizing.md has the table that ``python -m bench.sizes`` prints."""

from pathlib import Path

from bench import sizes


def test_the_page_has_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8")
    assert [row for row in sizes.rows() if row not in page] == []
