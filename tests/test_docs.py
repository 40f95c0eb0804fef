"""README and docs name files, pages and sections that exist, and README stays short."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").glob("*.md"))]
README_BYTES = 7 * 1024
MOST_FILES = 40
"""The most files from a request to its first token, kernels left out."""
PATH_FILE = re.compile(r"`(\w+/[\w/]+\.py)`")
"""A file in the lists of a request's path."""


def section(page: Path, title: str) -> str:
    """The text of a page's section, without the sections after it of any level."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"# {title}\n")
    assert found, f"{page.name} has no section {title!r}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files and anchors that a page links to or shows, other sites left out."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_sections(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name}: there is no {target}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {target.name} has no #{anchor}"


def test_the_path_of_a_request_names_files_that_exist_and_counts_them() -> None:
    text = section(ROOT / "docs" / "architecture.md", "The path of a request")
    to_first_token, more = text.split("streamed token, and a test keeps it so")
    first, second = PATH_FILE.findall(to_first_token), PATH_FILE.findall(more)
    (num_first,) = re.findall(r"That is (\d+) files", to_first_token)
    (num_second,) = re.findall(r"passes (\d+) more", more)
    assert (len(first), len(second)) == (int(num_first), int(num_second))
    assert len({*first, *second}) == len(first) + len(second), "a file is named twice"
    assert [file for file in (*first, *second) if not (ROOT / file).is_file()] == []
    assert len(first) <= MOST_FILES, "a reader of one request opens too many files"


@pytest.mark.parametrize(
    "title", ["The path of a request", "A walk of `temperature`", "A walk of a KV page"]
)
def test_walks_name_files_that_exist(title: str) -> None:
    text = section(ROOT / "docs" / "architecture.md", title)
    files = PATH_FILE.findall(text)
    assert len(files) > 5
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_readme_is_what_a_newcomer_needs() -> None:
    size = (ROOT / "README.md").stat().st_size
    assert size <= README_BYTES, (
        f"README.md has {size} bytes: figures belong in docs/performance.md"
    )


def test_readme_shows_the_system_the_page_and_the_throughput() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown == ["docs/system.svg", "docs/page.png", "docs/throughput.svg"]


def test_each_result_file_that_a_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"bench/results/([\w.\-]+\.\w+)", page.read_text(encoding="utf-8")):
            assert (ROOT / "bench" / "results" / name).is_file(), f"{page.name}: {name}"
