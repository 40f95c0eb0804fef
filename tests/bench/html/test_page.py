"""Reports of every kind: whole, self-contained, and telling what went wrong."""

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from markupsafe import escape

from bench.harness.html import page as pages
from bench.harness.html.charts import Chart
from bench.harness.html.page import View
from bench.harness.html.sections import TERMS
from bench.harness.html.throughput import REFERENCES
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

    def names(chart: Chart) -> str:
        return f"<svg>{escape(', '.join(line.name for line in chart.lines))}</svg>"

    monkeypatch.setattr(Chart, "svg", names)


def render(*documents: dict[str, Any], names: Sequence[str] = (), **view: Any) -> str:
    """A page of results, named a, b, … if there are no names."""
    return pages.render(list(zip(names or "abcdef", documents, strict=False)), View(**view))


def check(page: str) -> str:
    """Balanced, and nothing fetched from anywhere."""
    parser = Balanced()
    parser.feed(page.partition("<!doctype html>")[2])
    assert parser.open == []
    assert not re.search(r"<(script|link|img|iframe)|url\((?!#)|@import|src=|href=\"(?!#)", page)
    return page


def test_a_throughput_report_has_figures_and_circumstances() -> None:
    page = check(render(throughput_document()))
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
    page = check(render(found, model=said))
    assert [name in page for name in NAMES] == [shown] * len(NAMES)
    if shown:
        other = throughput_document()
        both = check(render(found, other))
        assert not any(name in both for name in NAMES), "they are not of the other result's lengths"


@pytest.mark.usefixtures("names_for_charts")
def test_the_headline_comes_before_the_verdict_and_the_charts() -> None:
    found = throughput_document()
    for level in found["results"]["levels"]:
        level["total_tok_s"] = 1000.0 + level["concurrency"] % 64  # 32 at once are the fastest
    page = check(render(found))
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
    assert "total tok/s, " not in check(render(nothing))


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
    page = check(render(found))
    states = re.findall(r'<p class="state (\w+)">(.*?)</p>', page)
    kind = "good" if all(passed) and not problems else "bad"
    assert [kind for kind, _ in states] == [kind] * len(said)
    for text, (_, words) in zip(said, states, strict=True):
        assert words.startswith(text)


@pytest.mark.usefixtures("names_for_charts")
def test_the_latencies_are_explained_in_a_line_each() -> None:
    for document in (throughput_document(), load_document(), sweep_document()):
        page = check(render(document))
        for name in ("TTFT", "TPOT") if document["kind"] == "sweep" else ("TTFT", "ITL", "TPOT"):
            assert page.count(f"<dt>{name}</dt><dd>{escape(TERMS[name])}</dd>") == 1


@pytest.mark.usefixtures("names_for_charts")
def test_failures_are_named_and_escaped() -> None:
    found = throughput_document(failed=[{"label": "#1", "failure": "garbage", "detail": "<html>"}])
    page = check(render(found))
    assert "level 1: 1 of 4 failed (1 garbage)" in page
    assert "&lt;html&gt;" in page


def test_several_results_share_a_chart() -> None:
    page = check(render(throughput_document(), throughput_document(2.0), names=["ours", "theirs"]))
    assert "Levels: ours" in page
    assert "Environment: theirs" in page


def test_latencies_of_all_runs_stand_in_one_figure_and_ratios_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Chart] = []
    monkeypatch.setattr(Chart, "svg", lambda chart: drawn.append(chart) or "<svg></svg>")
    page = check(render(throughput_document(), throughput_document(2.0), names=["ours", "theirs"]))
    latencies = [chart for chart in drawn if chart.y_label == "ms"]
    names = ["ours p50", "ours p99", "theirs p50", "theirs p99"]
    assert [[line.name for line in chart.lines] for chart in latencies[:4]] == [names] * 4
    assert [line.colour for line in latencies[0].lines] == [0, 0, 1, 1]
    rates = [chart for chart in drawn if chart.y_label == "tok/s" and chart.x_ticks]
    assert [chart.log_y for chart in rates] == [True, True]
    assert rates[0].limits == rates[1].limits is not None, "one scale for both"
    trade = next(chart for chart in drawn if chart.x_label == "tok/s per user")
    assert [line.name for line in trade.lines] == ["ours", "theirs"]
    assert trade.y_label == "generated tok/s", "no GPUs are recorded"
    assert "<h3>theirs / ours</h3>" in page
    ratios = page.partition("<h3>theirs / ours</h3>")[2].partition("</table>")[0]
    assert ratios.count("<td>2.000</td>") == 7 * 2, "total and output tok/s of each level"
    assert ratios.count("<td>0.500</td>") == 7 * 4
    for share in ("p90", "p95"):
        assert f">TPOT {share}</th>" in page


def test_throughput_is_per_gpu_where_gpus_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Chart] = []
    monkeypatch.setattr(Chart, "svg", lambda chart: drawn.append(chart) or "<svg></svg>")
    check(render(throughput_document(), throughput_document(), gpus=[1, 4]))
    trade = next(chart for chart in drawn if chart.x_label == "tok/s per user")
    assert trade.y_label == "generated tok/s per GPU"
    (x, ours), (_, theirs) = (line.points[0] for line in trade.lines)
    assert (x, ours / theirs) == (pytest.approx(1.0), pytest.approx(4.0))
    assert trade.lines[0].labels[-1] == "64"
    with pytest.raises(ValueError, match=r"--gpus: 1 numbers for 2 runs"):
        render(throughput_document(), throughput_document(), gpus=[1])


@pytest.mark.usefixtures("names_for_charts")
def test_results_of_one_name_are_repetitions_with_a_spread() -> None:
    names = ["ours", "ours", "theirs", "theirs"]
    documents = [throughput_document(speed) for speed in (1.0, 1.25, 2.0, 2.5)]
    page = check(render(*documents, names=names))
    assert "<td>2.000 (1.600–2.500)</td>" in page
    assert "Levels: theirs, 2" in page
    assert "<svg>ours, theirs</svg>" in page


@pytest.mark.usefixtures("names_for_charts")
def test_tpot_is_the_headline_where_tokens_arrive_in_bursts() -> None:
    found = throughput_document()
    for level in found["results"]["levels"]:
        level["itl_ms"] = level["itl_ms"] | {"p50": 0.2}
    head = check(render(found)).partition('class="state')[0]
    assert "ITL" not in head
    assert head.index("ms TPOT p50, 1 at once") < head.index("ms TTFT p50, 1 at once")


@pytest.mark.usefixtures("names_for_charts")
def test_headings_are_aligned_as_the_values_below_them() -> None:
    found = throughput_document()
    found["results"]["levels"][0]["spot_checks"] = [
        {"question": "1 + 1 =", "expected": 2, "answer": "3", "passed": False}
    ]
    page = check(render(found))
    assert '<th class="n">expected</th>' in page
    assert '<th class="n">TTFT p50</th>' in page
    assert "<th>the answer begins</th>" in page


@pytest.mark.usefixtures("names_for_charts")
def test_a_seed_is_a_name_and_no_amount() -> None:
    found = throughput_document()
    found["settings"]["seed"] = 1673581725
    found["settings"]["extra_body"] = {"seed": 1234567}
    page = check(render(found))
    assert "<td>1673581725</td>" in page
    assert "seed 1234567" in page


@pytest.mark.usefixtures("names_for_charts")
@pytest.mark.parametrize(
    ("model", "random_weights"), [("tiny", False), ("models/tiny", False), ("m", True)]
)
def test_sums_that_the_model_is_known_to_get_wrong_are_no_problem(
    model: str, random_weights: bool
) -> None:
    found = throughput_document()
    found["server"] = found["server"] | {"model": model}
    found["results"]["levels"][0]["spot_checks"] = [
        {"question": "1 + 1 =", "expected": 2, "answer": "3", "passed": False}
    ]
    page = check(render(found, random_weights=random_weights))
    assert 'class="state bad"' not in page
    assert "spot checks: 0 of 1 sums right, which is known of this model" in page


def test_load_and_sweep() -> None:
    assert "requests a second within the targets" in check(render(load_document()))
    page = check(render(sweep_document()))
    assert "goodput at 90%" in page
    assert "Trials" in page


def test_gpu_health_is_drawn_a_line_for_each_gpu() -> None:
    found = throughput_document()
    found["results"]["gpu"] = [
        {"at_s": second, "gpus": [{"index": i, "power_w": 300.0 + i} for i in range(2)]}
        for second in range(3)
    ]
    page = check(render(found))
    assert "GPU health" in page
    assert "GPU 1" in page
    assert "power w" in page


def test_each_concurrency_of_the_gpu_benchmark_is_drawn() -> None:
    found = throughput_document()
    steps = [{"concurrency": 10**n, "tokens_per_s": 100.0 * n} for n in range(1, 5)]
    found |= {"kind": "gpu", "results": {"tokens_per_s": 400.0, "ramp": steps}}
    page = check(render(found))
    assert "requests at once" in page
    assert "10,000" in page
    found["results"]["ramp"] = steps[:1]
    assert "requests at once" not in check(render(found))


def test_any_other_kind_is_shown_as_facts_and_tables() -> None:
    found = throughput_document()
    results = {
        "passed": 3,
        "levels": [10, 100],
        "checks": [{"name": "health"}],
        "each_second": [1.0, 2.0] * 20,
    }
    found |= {"kind": "conformance", "results": results}
    page = check(render(found))
    assert "health" in page
    assert "passed" in page
    assert page.count("<svg") == 1


def test_a_run_without_a_result_says_why() -> None:
    found = throughput_document()
    found |= {"results": {}, "stopped": "cannot measure: connect: refused", "ok": False}
    assert "stopped: cannot measure: connect: refused" in check(render(found))


def test_a_given_acceptance_of_drafts_stands_above_all_figures() -> None:
    document = throughput_document()
    assert "given probability" not in render(document)
    document["server"] = document["server"] | {"given_draft_acceptance": 0.8}
    before_figures = check(render(document)).partition("<section>")[0]
    assert "drafts were accepted with a given probability of 0.8" in before_figures
