"""The whole command against servers whose timings and faults are known."""

import json
import os
import signal
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.harness.throughput import line_of, measure
from bench.harness.throughput_settings import ThroughputSettings
from bench.harness.workload.tokens import TokenizerMissing
from bench.measures import percentile
from tests.bench.letters import Letters
from tests.bench.sessions import session
from tests.bench.stub import Behaviour, Stub

ServeStub = Callable[[Behaviour], Stub]
SMALL = ["--vocab-size", "676", "--input-len", "40", "--requests", "8", "--levels", "4"]
SMALL += ["--give-up-after", "20"]
IMPATIENT = ["--first-byte-s", "1", "--stall-s", "1"]


def bench(url: str, out: Path, *more: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Exit status, the last line of stdout, and the file."""
    result = CliRunner().invoke(app, ["throughput", "--url", url, *SMALL, "--out", str(out), *more])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1]), json.loads(out.read_text())


async def test_what_is_measured_is_what_the_server_did() -> None:
    """Within 2 % of the stub's own stamps, which a busy machine makes late as well, and of the
    nominal time per token. Both share one event loop, so that no thread waits for another. A
    machine that stood still is measured again."""
    ttft_s, itl_s, num_tokens, level = 0.3, 0.15, 9, 4
    settings = ThroughputSettings(
        seed=1, levels=(level,), requests=8, input_len=20, output_len=num_tokens, warm_ups=2
    )
    for _ in range(5):
        async with Stub(Behaviour(ttft_s, itl_s, give_ids=True)) as stub:
            async with session(stub.url) as given:
                found = await measure(given, settings, Letters())
            served = stub.served[2:]  # without the warm-ups
        gaps = [b - a for s in served for a, b in pairwise(s.event_at_s)]
        if max(gaps) < 2 * itl_s:
            break
    assert found.problems() == []
    (figures,) = found.json()["levels"]
    first = [s.event_at_s[0] - s.came_at_s for s in served]
    whole = [s.event_at_s[-1] - s.came_at_s for s in served]
    wall_s = max(s.event_at_s[-1] for s in served) - min(s.came_at_s for s in served)
    near = 0.02
    assert figures["ttft_ms"]["p50"] == pytest.approx(1000 * percentile(first, 0.5), rel=near)
    assert figures["itl_ms"]["p50"] == pytest.approx(1000 * percentile(gaps, 0.5), rel=near)
    assert figures["itl_ms"]["mean"] == pytest.approx(1000 * fmean(gaps), rel=near)
    assert figures["itl_ms"]["p50"] == pytest.approx(1000 * itl_s, rel=near)
    assert figures["tpot_ms"]["p50"] == pytest.approx(1000 * itl_s, rel=near)
    assert figures["e2e_ms"]["p50"] == pytest.approx(1000 * percentile(whole, 0.5), rel=near)
    assert figures["output_tok_s"] == pytest.approx(8 * num_tokens / wall_s, rel=near)
    assert figures["output_tokens"] == sum(s.num_tokens for s in served)
    assert figures["counts"]["by_ids"] == 8
    assert 1 <= figures["tokens_per_arrival"] < 2


def test_several_tokens_in_an_event(serve_stub: ServeStub, tmp_path: Path) -> None:
    """Gaps are between events; TPOT and the counts are of tokens."""
    stub = serve_stub(Behaviour(0.04, 0.02, tokens_per_event=4))
    status, _, found = bench(stub.url, tmp_path / "r.json", "--output-len", "16")
    (figures,) = found["results"]["levels"]
    assert status == 0
    assert figures["output_tokens"] == 8 * 16
    assert 4 <= figures["tokens_per_arrival"] < 6, "a busy client may read two events at once"
    span_ms = 1000 * fmean(s.event_at_s[-1] - s.event_at_s[0] for s in stub.served[2:])
    num_gaps = 16 / figures["tokens_per_arrival"] - 1
    assert figures["itl_ms"]["mean"] == pytest.approx(span_ms / num_gaps, rel=0.1)
    assert figures["tpot_ms"]["mean"] == pytest.approx(span_ms / 15, rel=0.1)


def test_the_line_of_a_level_shows_tpot_where_tokens_arrive_in_bursts() -> None:
    level: dict[str, Any] = {
        "concurrency": 4,
        "requests": 64,
        "failed": 0,
        "wall_s": 0.7,
        "total_tok_s": 1733.0,
    }
    level |= {"output_tok_s": 347.0, "ttft_ms": {"p50": 58.3}, "tpot_ms": {"p50": 7.24}}
    assert "TPOT p50 7.24 ms, 0.7 s" in line_of(level | {"itl_ms": {"p50": 0.07}})
    assert "ITL p50 6.90 ms, 0.7 s" in line_of(level | {"itl_ms": {"p50": 6.9}})
    assert "p50 58.3 ms, 0.7 s" in line_of(level | {"itl_ms": None, "tpot_ms": None})


def test_prompts_are_of_exact_length_fresh_and_sums_are_among_them(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(Behaviour(0.001, 0.0005))
    more = ["--output-len", "4", "--levels", "1,2", "--requests", "16"]
    _, line, found = bench(stub.url, tmp_path / "r.json", *more)
    prompts = [served.body["prompt"] for served in stub.served]
    assert len(prompts) == 2 * (2 + 16)
    assert len(set(prompts)) == len(prompts)
    assert sum(len(prompt) == 2 * 40 for prompt in prompts) >= 2 * (2 + 14)
    for level in found["results"]["levels"]:
        assert [check["passed"] for check in level["spot_checks"]] == [False, False]
        assert level["spot_checks_left_out"] == 0
        assert level["counts"]["prompts_differ_from_usage"] == 0
    _, again, _ = bench(stub.url, tmp_path / "s.json", *more, "--seed", str(line["seed"]))
    assert again["seed"] == line["seed"]
    repeated = [served.body["prompt"] for served in stub.served[len(prompts) :]]
    assert sorted(repeated) == sorted(prompts)


@pytest.mark.parametrize("more", [["--no-stream"], ["--api", "chat"], ["--prompt-as", "ids"]])
def test_other_ways_to_ask(serve_stub: ServeStub, tmp_path: Path, more: list[str]) -> None:
    stub = serve_stub(Behaviour(0.001, 0.0005))
    status, _, found = bench(stub.url, tmp_path / "r.json", "--output-len", "4", *more)
    (figures,) = found["results"]["levels"]
    assert status == 0
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (
        sum(r["prompt_tokens_usage"] for r in found["results"]["requests"]),
        8 * 4,
    )
    assert (figures["ttft_ms"] is None) == (more == ["--no-stream"])


@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [
        (Behaviour(fault="refuse", fault_every=2), "http"),
        (Behaviour(fault="stall", fault_every=2), "stalled"),
        (Behaviour(fault="mute", fault_every=2), "stalled"),
        (Behaviour(fault="garbage", fault_every=2), "garbage"),
        (Behaviour(fault="not_http", fault_every=2), "garbage"),
        (Behaviour(fault="drop", fault_every=2), "dropped"),
        (Behaviour(fault="error", fault_every=2), "error_in_stream"),
        (Behaviour(fault="truncate", fault_every=2), "truncated"),
        (Behaviour(usage_factor=2), "miscount"),
        (Behaviour(answer_len=3), "miscount"),
    ],
)
def test_a_bad_server_is_named_and_the_run_ends(
    serve_stub: ServeStub, tmp_path: Path, behaviour: Behaviour, failure: str
) -> None:
    stub = serve_stub(behaviour)
    more = IMPATIENT if failure == "stalled" else []
    status, line, found = bench(stub.url, tmp_path / "r.json", "--output-len", "6", *more)
    assert status == 1
    assert not line["ok"]
    listed = found["results"]["failures"]
    assert {entry["failure"] for entry in listed} <= {failure}
    assert failure in " ".join(found["problems"]) + (found["stopped"] or "")
    for level in found["results"]["levels"]:
        assert level["requests"] + level["not_sent"] == 8
        assert level["completed"] + level["failed"] == level["requests"]


def test_a_server_that_never_answers_is_given_up_in_the_warm_up(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(Behaviour(fault="mute"))
    status, _, found = bench(stub.url, tmp_path / "r.json", *IMPATIENT)
    assert status == 1
    assert "every warm-up of level 4 failed: stalled: no byte within 1 s" in found["stopped"]
    assert not found["complete"]
    assert len(stub.served) == 2


def test_a_server_that_fails_on_and_on_is_given_up(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(fault="refuse"))
    more = ["--warm-ups", "0", "--give-up-after", "3", "--levels", "1"]
    status, _, found = bench(stub.url, tmp_path / "r.json", *more)
    assert status == 1
    assert "given up after 3 failures in a row, the last: HTTP 503" in found["stopped"]
    assert found["results"]["levels"][0]["not_sent"] == 5


def test_no_server_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, line, found = bench(url, tmp_path / "r.json")
    assert status == 2
    assert not line["complete"]
    assert "connect" in found["stopped"]
    assert url in found["stopped"]


def test_ctrl_c_keeps_what_was_measured(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(0.01, 0.005, fault="stall", fault_every=7))
    stub.on_request = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 7 else None
    more = ["--output-len", "8", "--levels", "1"]
    status, line, found = bench(stub.url, tmp_path / "r.json", *more)
    assert status == 130
    assert (line["complete"], found["stopped"]) == (False, "interrupted")
    (level,) = found["results"]["levels"]
    assert level["failures"] == {"cancelled": 1}
    assert (level["completed"], level["not_sent"]) == (4, 3)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--levels", "1,x"], "levels"),
        (["--levels", "0"], "levels"),
        (["--spot-checks", "-1"], "spot_checks"),
        (["--requests", "32"], "requests"),
        (["--url", "nowhere"], "url"),
        (["--stall-s", "0"], "stall_s"),
        (["--api", "chat", "--prompt-as", "ids"], "prompt_as"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, more: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["throughput", "--out", str(tmp_path / "r.json"), *more])
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_result_that_could_not_be_written_is_not_even_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "r.json"
    result = CliRunner().invoke(app, ["throughput", "--out", str(where)])
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


async def test_what_was_measured_outlives_a_tokenizer_that_is_gone() -> None:
    """The second level has no prompts; the first is kept."""

    class Failing(Letters):
        async def encode(self, text: str) -> list[int]:
            if len(stub.served) >= 4:
                raise TokenizerMissing("gone")
            return await super().encode(text)

    settings = ThroughputSettings(
        seed=1, levels=(1, 2), requests=2, input_len=8, output_len=2, spot_checks=0
    )
    async with Stub(Behaviour(0.001, 0.001)) as stub, session(stub.url) as given:
        found = await measure(given, settings, Failing())
    assert [level["concurrency"] for level in found.levels] == [1]
    assert given.control.stopped == "no prompts for level 2: gone"
    assert found.levels[0]["failures"] == {"miscount": 2}
    assert "could not be counted: gone" in found.outcomes[0].record.detail


def test_rounds_shorten_the_low_levels_only() -> None:
    settings = ThroughputSettings(seed=1, levels=(1, 2, 8), requests=64, rounds=16)
    assert [settings.requests_at(level) for level in settings.levels] == [16, 32, 64]


def test_a_short_level_has_no_sums_and_says_so(serve_stub: ServeStub, tmp_path: Path) -> None:
    settings = ThroughputSettings(seed=1, levels=(1, 2, 8), requests=64, rounds=8)
    assert [settings.spot_checks_at(level) for level in settings.levels] == [0, 2, 2]
    stub = serve_stub(Behaviour(0.001, 0.0005))
    what = ["throughput", "--url", stub.url, *SMALL, "--out", str(tmp_path / "r.json")]
    result = CliRunner().invoke(app, [*what, "--output-len", "4"])
    (level,) = json.loads((tmp_path / "r.json").read_text())["results"]["levels"]
    assert (level["spot_checks"], level["spot_checks_left_out"]) == ([], 2)
    assert "of 8 requests" in result.stderr


@pytest.mark.parametrize(
    ("status", "given"),
    [
        ({"workers": [{"given_acceptance": None}, {"given_acceptance": 0.75}]}, 0.75),
        ({"workers": [{"given_acceptance": None}, {}, "worker"]}, None),
        ({"workers": "none"}, None),
        (["another server"], None),
    ],
)
def test_an_acceptance_of_drafts_that_is_given_is_in_the_result(
    serve_stub: ServeStub, tmp_path: Path, status: Any, given: float | None
) -> None:
    stub = serve_stub(Behaviour(0.002, 0.001, status=status))
    code, line, found = bench(stub.url, tmp_path / "r.json", "--output-len", "3")
    assert (code, found["server"]["given_draft_acceptance"]) == (0, given)
    assert line.get("given_draft_acceptance") == given
