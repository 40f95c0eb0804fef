"""Reports of every kind: whole, self-contained, and telling what went wrong."""

import re
from html.parser import HTMLParser
from typing import Any

from bench.html.page import render
from bench.html.throughput import references
from tests.bench.documents import load_document, sweep_document, throughput_document

_VOID = {"meta", "br", "line", "circle", "polyline", "i"}


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in _VOID - {"i"} or tag in ("circle",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def check(page: str) -> str:
    """Balanced, and nothing fetched from anywhere."""
    parser = Balanced()
    parser.feed(page.removeprefix("<!doctype html>"))
    assert parser.open == []
    assert not re.search(r"<(script|link|img|iframe)|url\(|@import|src=|href=", page)
    return page


def test_a_throughput_report_has_figures_references_and_circumstances() -> None:
    page = check(render([throughput_document()]))
    assert "complete, without a failure" in page
    for reference in references():
        assert reference["name"] in page
    for part in ("TTFT", "End to end", "Second by second", "baton bench throughput", "No request"):
        assert part in page


def test_failures_are_named_and_escaped() -> None:
    found = throughput_document(failed=[{"label": "#1", "failure": "garbage", "detail": "<html>"}])
    page = check(render([found]))
    assert "level 1: 1 of 4 failed (1 garbage)" in page
    assert "&lt;html&gt;" in page


def test_several_results_share_a_chart() -> None:
    page = check(render([throughput_document(), throughput_document(2.0)], ["ours", "theirs"]))
    assert "Levels: ours" in page
    assert "Environment: theirs" in page


def test_load_and_sweep() -> None:
    assert "requests a second within the targets" in check(render([load_document()]))
    page = check(render([sweep_document()]))
    assert "goodput at 90%" in page
    assert "Trials" in page


def test_gpu_health_is_drawn_a_line_for_each_gpu() -> None:
    found = throughput_document()
    found["results"]["gpu"] = [
        {"at_s": second, "gpus": [{"index": i, "power_w": 300.0 + i} for i in range(2)]}
        for second in range(3)
    ]
    page = check(render([found]))
    assert "GPU health" in page
    assert "GPU 1" in page
    assert "power w" in page


def test_any_other_kind_is_shown_as_facts_and_tables() -> None:
    found = throughput_document()
    results = {"passed": 3, "checks": [{"name": "health"}], "each_second": [1.0, 2.0] * 20}
    found |= {"kind": "conformance", "results": results}
    page = check(render([found]))
    assert "health" in page
    assert "passed" in page
    assert 'aria-label="each second"' in page


def test_a_run_without_a_result_says_why() -> None:
    found = throughput_document()
    found |= {"results": {}, "stopped": "cannot measure: connect: refused", "ok": False}
    assert "stopped: cannot measure: connect: refused" in check(render([found]))
