"""Reports of every kind: whole, self-contained, and telling what went wrong."""

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from markupsafe import escape

from bench.harness.html import sections
from bench.harness.html.charts import Line
from bench.harness.html.page import render
from bench.harness.html.sections import REFERENCES, TERMS
from tests.bench.documents import load_document, sweep_document, throughput_document

_VOID = {"meta", "br"}


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


NAMES = [each["name"] for each in json.loads(REFERENCES.read_text())["references"]]
SAME_LENGTHS = {"input_len": 1024, "output_len": 1024}


@pytest.fixture
def names_for_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of each chart the names of its lines: drawing takes most of a report's time."""

    def names(lines: Sequence[Line], *_: object, **__: object) -> str:
        return f"<svg>{escape(', '.join(line.name for line in lines))}</svg>"

    monkeypatch.setattr(sections, "chart", names)


def check(page: str) -> str:
    """Balanced, and nothing fetched from anywhere."""
    parser = Balanced()
    parser.feed(page.partition("<!doctype html>")[2])
    assert parser.open == []
    assert not re.search(r"<(script|link|img|iframe)|url\((?!#)|@import|src=|href=\"(?!#)", page)
    return page


def test_a_throughput_report_has_figures_and_circumstances() -> None:
    page = check(render([throughput_document()]))
    assert '<p class="state good">complete, without a failure</p>' in page
    for part in ("TTFT", "End to end", "Second by second", "baton bench throughput", "No request"):
        assert part in page


@pytest.mark.usefixtures("names_for_charts")
@pytest.mark.parametrize(
    ("served", "lengths", "said", "shown"),
    [
        ("Qwen/Qwen3.5-35B-A3B", SAME_LENGTHS, None, True),
        ("full", SAME_LENGTHS, "qwen3.5-35b-a3b", True),
        ("full", SAME_LENGTHS, None, False),
        ("Qwen/Qwen3.5-35B-A3B", SAME_LENGTHS, "tiny", False),
        ("Qwen/Qwen3.5-35B-A3B", SAME_LENGTHS | {"output_len": 128}, None, False),
        (None, SAME_LENGTHS, None, False),
    ],
)
def test_references_stand_only_beside_the_same_model_and_lengths(
    served: str | None, lengths: dict[str, int], said: str | None, shown: bool
) -> None:
    found = throughput_document()
    found["server"] = found["server"] | {"model": served}
    found["settings"] = found["settings"] | lengths
    page = check(render([found], model=said))
    assert [name in page for name in NAMES] == [shown] * len(NAMES)
    if shown:
        other = throughput_document()
        both = check(render([found, other], ["ours", "other"], model=None))
        assert not any(name in both for name in NAMES), "they are not of the other result's lengths"


@pytest.mark.usefixtures("names_for_charts")
def test_the_headline_comes_before_the_verdict_and_the_charts() -> None:
    found = throughput_document()
    for level in found["results"]["levels"]:
        level["total_tok_s"] = 1000.0 + level["concurrency"] % 64  # 32 at once are the fastest
    page = check(render([found]))
    head, _, rest = page.partition('class="state')
    assert "<b>1,032</b><span>total tok/s, 32 at once</span>" in head
    assert "ms TTFT p50, 1 at once" in head
    assert "ms TPOT p50, 32 at once" in head
    assert "<svg" in rest
    assert "<svg" not in head
    nothing = throughput_document()
    nothing["results"]["levels"] = [
        {"concurrency": 1, "requests": 3, "failed": 3, "spot_checks": []}
    ]
    assert "total tok/s, " not in check(render([nothing]))


@pytest.mark.usefixtures("names_for_charts")
@pytest.mark.parametrize(
    ("passed", "problems", "said"),
    [
        ([True, True], [], ["complete, without a failure; spot checks: 2 of 2 sums right"]),
        ([True, False], [], ["complete, and no request failed; but:",
                             "spot checks: 1 of 2 sums were answered wrong"]),
        ([False], ["level 1: 1 of 4 failed"], ["level 1: 1 of 4 failed",
                                               "spot checks: 1 of 1 sums were answered wrong"]),
    ],
)  # fmt: skip
def test_wrong_sums_are_part_of_the_verdict(
    passed: list[bool], problems: list[str], said: list[str]
) -> None:
    found = throughput_document() | {"problems": problems}
    found["results"]["levels"][0]["spot_checks"] = [
        {"question": "1 + 1 =", "expected": 2, "answer": "2", "passed": each} for each in passed
    ]
    page = check(render([found]))
    states = re.findall(r'<p class="state (\w+)">(.*?)</p>', page)
    kind = "good" if all(passed) and not problems else "bad"
    assert [kind for kind, _ in states] == [kind] * len(said)
    for text, (_, words) in zip(said, states, strict=True):
        assert words.startswith(text)


@pytest.mark.usefixtures("names_for_charts")
def test_the_latencies_are_explained_in_a_line_each() -> None:
    for document in (throughput_document(), load_document(), sweep_document()):
        page = check(render([document]))
        for name in ("TTFT", "TPOT") if document["kind"] == "sweep" else ("TTFT", "ITL", "TPOT"):
            assert page.count(f"<dt>{name}</dt><dd>{escape(TERMS[name])}</dd>") == 1


@pytest.mark.usefixtures("names_for_charts")
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
    results = {
        "passed": 3,
        "levels": [10, 100],
        "checks": [{"name": "health"}],
        "each_second": [1.0, 2.0] * 20,
    }
    found |= {"kind": "conformance", "results": results}
    page = check(render([found]))
    assert "health" in page
    assert "passed" in page
    assert page.count("<svg") == 1


def test_a_run_without_a_result_says_why() -> None:
    found = throughput_document()
    found |= {"results": {}, "stopped": "cannot measure: connect: refused", "ok": False}
    assert "stopped: cannot measure: connect: refused" in check(render([found]))
