"""Conversations of agents against a server that says how much of a prompt it had before."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.harness.agents.result import AgentsLevel, AgentsLoad
from bench.harness.agents.run import check_fits
from bench.harness.agents.settings import SHAPES
from bench.harness.client.record import Arrival, Failure, PromptTokensDetails, Record, Usage
from bench.harness.figures.counting import Count
from bench.harness.figures.outcome import Outcome
from bench.harness.html.page import View, contents, render
from bench.harness.load_settings import LoadSettings
from bench.harness.workload.plan import Lengths
from tests.bench.documents import ENVIRONMENT, SERVER
from tests.bench.stub import Behaviour, Stub, encode

ServeStub = Callable[[Behaviour], Stub]
FAST = Behaviour(0.002, 0.001, tells_cached=True)
SMALL = ["--agents", "3", "--turns", "4", "--agents-shared-prefix", "300", "--output-len", "5"]
SMALL += ["--agents-turn-len", "7", "--warm-ups", "1"]


def bench(url: str, out: Path, *more: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    fixed = ["load", "--url", url, "--vocab-size", "676", "--out", str(out), "--stall-s", "20"]
    result = CliRunner().invoke(app, [*fixed, *more])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1]), json.loads(out.read_text())


def conversations(stub: Stub) -> list[list[list[dict[str, Any]]]]:
    """The messages of each turn of each agent, told apart by their first question."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for served in stub.served:
        if len(messages := served.body["messages"]) > 1:  # else a warm-up
            found.setdefault(messages[1]["content"], []).append(messages)
    return list(found.values())


@pytest.mark.parametrize("role", ["tool", "user"])
def test_each_turn_sends_the_whole_conversation_with_the_servers_answers(
    serve_stub: ServeStub, tmp_path: Path, role: str
) -> None:
    stub = serve_stub(FAST)
    status, line, found = bench(stub.url, tmp_path / "r.json", *SMALL, "--agents-turn-as", role)
    assert (status, found["kind"], found["problems"]) == (0, "agents", [])
    agents = conversations(stub)
    assert len(agents) == 3
    assert len({turns[0][0]["content"] for turns in agents}) == 1  # one system prompt for all
    for turns in agents:
        roles = [message["role"] for message in turns[-1]]
        assert roles == ["system", "user", *["assistant", role] * 3]
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
            assert len(encode(after[len(before)]["content"])) == 5  # the answer
            assert len(encode(after[-1]["content"])) == 7
            assert ("tool_call_id" in after[-1]) == (role == "tool")
    (run,) = found["results"]["levels"]
    assert (run["concurrency"], line["agents"].keys()) == (3, {"3"})
    assert (run["planned"], run["requests"], run["failed"], run["not_sent"]) == (12, 12, 0, 0)
    assert run["counts"]["prompts_differ_from_usage"] == 0
    assert line["agents"]["3"]["hit_rate_later"] == pytest.approx(run["hit_rate_later"])


def test_the_share_that_was_cached_is_told_turn_by_turn(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(FAST)
    _, line, found = bench(stub.url, tmp_path / "r.json", *SMALL)
    turns, line = found["results"]["levels"][0]["by_turn"], line["agents"]["3"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4]
    assert [turn["prompt_tokens"] for turn in turns] == [307, 319, 331, 343]
    assert turns[0]["cached_tokens"] == pytest.approx(200, abs=3)  # 300, but none for the first
    for turn in turns[1:]:
        # Seven tokens are new; by chance some more than those before are known from others.
        assert turn["prompt_tokens"] - turn["cached_tokens"] == pytest.approx(7, abs=1)
        assert turn["hit_rate"] == pytest.approx(
            turn["cached_tokens"] / turn["prompt_tokens"], abs=1e-4
        )  # the file has five digits
        assert turn["ttft_ms"]["p50"] <= turn["ttft_ms"]["p99"]
        assert turn["without_cached_tokens"] == 0
    assert line["lowest_hit_rate_later"] == pytest.approx(turns[1]["hit_rate"], abs=0.005)
    assert line["ttft_growth"] > 0
    assert [request["label"] for request in found["results"]["requests"][:2]] == [
        "level 3 agent 0 turn 1", "level 3 agent 0 turn 2",
    ]  # fmt: skip


def test_a_server_that_does_not_tell_has_no_hit_rate(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(0.002, 0.001))
    status, line, found = bench(stub.url, tmp_path / "r.json", *SMALL)
    assert (status, line["agents"]["3"]["hit_rate_later"]) == (0, None)
    turns = found["results"]["levels"][0]["by_turn"]
    assert {turn["hit_rate"] for turn in turns} == {None}
    assert {turn["without_cached_tokens"] for turn in turns} == {3}


def test_an_agent_whose_turn_failed_sends_no_more_and_all_is_counted(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(Behaviour(0.002, 0.001, fault="drop", fault_every=6))
    status, _, found = bench(stub.url, tmp_path / "r.json", *SMALL)
    (run,) = found["results"]["levels"]
    turns = run["by_turn"]
    assert status == 1
    assert run["failed"] == sum(turn["failed"] for turn in turns) > 0
    assert run["not_sent"] == 12 - run["requests"] > 0
    assert " dropped)" in found["problems"][0]
    assert "never sent" in found["problems"][1]


def test_the_deep_shape_lets_the_contexts_be_computed_before_the_clock_runs(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(FAST)
    small = ["--agents-shape", "deep", "--agents", "2,3", "--agents-shared-prefix", "200"]
    small += ["--agents-own-prefix", "50", "--agents-turn-len", "20", "--output-len", "5"]
    status, line, found = bench(stub.url, tmp_path / "r.json", *small, "--warm-ups", "1")
    assert (status, found["problems"]) == (0, [])
    assert found["settings"]["agents"] == [2, 3]
    assert found["settings"]["agents_shape"] == "deep"
    assert (found["settings"]["turns"], found["settings"]["outputs"]) == (3, [5, 5])
    levels = found["results"]["levels"]
    assert [(level["concurrency"], level["requests"]) for level in levels] == [(2, 6), (3, 9)]
    for level in levels:
        first = level["by_turn"][0]
        assert first["prompt_tokens"] == 270
        assert first["cached_tokens"] == pytest.approx(250, abs=3), "also in the first turn"
    contexts = [each.body["messages"] for each in stub.served if each.body["max_tokens"] == 1]
    assert len(contexts) == 2 + 3
    systems = {messages[0]["content"] for messages in contexts}
    assert len(systems) == 3, "those of the first level are cached for the second one"
    assert len({content[:400] for content in systems}) == 1, "they share their beginning"
    questions = {turns[0][1]["content"] for turns in conversations(stub)} - {"Go on."}
    assert len(questions) == 2 + 3, "new ones in each level"
    assert line["agents"].keys() == {"2", "3"}


def test_the_shapes_have_lengths_of_their_own() -> None:
    deep = LoadSettings(agents_shape="deep", seed=1)
    assert (deep.agents, deep.kind) == ((32,), "agents")
    assert deep.shape == SHAPES["deep"]
    assert LoadSettings(agents=(4,), seed=1).shape == SHAPES["turns"]
    changed = LoadSettings(agents=(4,), agents_shape="deep", turns=5, agents_shared_prefix=0,
                           agents_own_prefix=9, output_len=Lengths(1, 2), seed=1)  # fmt: skip
    assert changed.shape == replace(
        SHAPES["deep"], turns=5, shared_prefix=0, own_prefix=9, output_len=Lengths(1, 2)
    )
    assert changed.json()["agents_turn_len"] == [6400, 6400]
    poisson = LoadSettings(rate=1.0, seed=1)
    assert (poisson.answer_len, poisson.json()["outputs"]) == (Lengths(128, 128), [128, 128])


def test_the_same_seed_repeats_the_conversations(serve_stub: ServeStub, tmp_path: Path) -> None:
    said = []
    for seed in ("1", "1", "2"):
        stub = serve_stub(FAST)
        bench(stub.url, tmp_path / "r.json", *SMALL, "--seed", seed, "--rate", "1000")
        said.append(
            {turns[0][0]["content"] + turns[0][1]["content"] for turns in conversations(stub)}
        )
    assert said[0] == said[1]
    assert not said[0] & said[2]


def test_a_turn_is_due_so_long_after_the_answer_before_it(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    stub = serve_stub(FAST)
    more = ["--think-s", "0.05", "--rate", "20"]
    _, _, found = bench(stub.url, tmp_path / "r.json", *SMALL, *more)
    requests = found["results"]["requests"]
    begins = [request["due_ms"] for request in requests[::4]]
    assert begins[1] >= 45  # the second agent begins 50 ms after the first; its timer may be early
    assert begins[2] >= 95
    for before, after in pairwise(requests):
        if after in requests[::4]:
            continue  # another agent's first
        assert after["due_ms"] >= before["done_ms"] + 45


def test_conversations_that_outgrow_the_server_are_refused_before_they_begin() -> None:
    settings = LoadSettings(agents=(1,), turns=10, agents_shared_prefix=1000, seed=1)
    check_fits(settings, 5000)
    with pytest.raises(ValueError, match=r"turns, agents_shared_prefix.*at most 4096"):
        check_fits(settings, 4096)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--agents", "0"], "agents"),
        (["--agents", "4,0"], "agents"),
        (["--agents-shared-prefix", "0"], "agents_own_prefix"),
        (["--agents-shape", "shallow"], "agents-shape"),
        (["--turns", "0"], "turns"),
        (["--think-s", "-1"], "think_s"),
        (["--agents-turn-len", "9-3"], "agents_turn_len"),
        (["--prompt-as", "ids"], "prompt_as"),
        (["--sweep", "--rate", "1"], "agents"),
        (["--requests", "5"], "agents"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, more: list[str], named: str) -> None:
    fixed = ["load", "--out", str(tmp_path / "r.json"), "--agents", "2"]
    result = CliRunner().invoke(app, [*fixed, *more])
    assert result.exit_code == 2
    assert named in result.stderr


def outcome(ttft_s: float, prompt: int, cached: int | None, failure: Failure | None = None) -> Any:
    details = None if cached is None else PromptTokensDetails(cached)
    record = Record(
        due_at_s=1.0, sent_at_s=1.0, first_byte_at_s=1.0 + ttft_s, done_at_s=2.0 + ttft_s,
        streamed=True, arrivals=(Arrival(1.0 + ttft_s, 1, 1, 1), Arrival(2.0 + ttft_s, 1, 1, 1)),
        usage=Usage(prompt, 2, prompt + 2, details), failure=failure,
    )  # fmt: skip
    return Outcome("#", record, Count(2, 2, 2, 2, "ids"), prompt)


def level_of(num_agents: int, turns: int, agents: list[list[Any]]) -> AgentsLevel:
    settings = LoadSettings(agents=(num_agents,), turns=turns, seed=1)
    return AgentsLevel(num_agents, settings.shape, agents)


def known() -> AgentsLevel:
    """Two agents of three turns, one of which was given up after its second."""
    first = [outcome(0.4, 100, 0), outcome(0.1, 200, 190), outcome(0.3, 400, 384)]
    second = [outcome(0.8, 100, 50), outcome(0.9, 300, 0, Failure.STALLED)]
    return level_of(2, 3, [first, second])


def test_figures_by_turn_are_over_requests_without_a_failure() -> None:
    one, two, three = known().by_turn()
    assert (one["requests"], one["failed"], one["prompt_tokens"]) == (2, 0, 100)
    assert (one["cached_tokens"], one["hit_rate"]) == (25, 0.25)
    assert one["ttft_ms"]["p50"] == pytest.approx(600)
    assert (two["requests"], two["failed"], two["hit_rate"]) == (2, 1, 0.95)
    assert (three["requests"], three["hit_rate"]) == (1, 0.96)
    run = known().json()
    assert run["hit_rate"] == pytest.approx((0 + 190 + 384 + 50) / 800)
    assert run["hit_rate_later"] == pytest.approx((190 + 384) / 600)
    assert run["lowest_hit_rate_later"] == 0.95
    assert run["ttft_growth"] == pytest.approx(3)
    assert run["not_sent"] == 1
    assert known().problems() == [
        "2 agents: 1 of 5 failed (1 stalled)", "2 agents: 1 never sent"
    ]  # fmt: skip


@pytest.mark.parametrize(("usage", "wrong"), [(1000, ""), (1400, ""), (5000, "5"), (500, "0.5")])
def test_a_server_with_another_tokenizer_got_another_load(usage: int, wrong: str) -> None:
    found = outcome(0.1, usage, 0)
    level = level_of(1, 1, [[replace(found, prompt_len=1000)]])
    expected = f"1 agents: the server counts {wrong} times as many prompt tokens as were sent: "
    assert level.problems() == ([expected + "its tokenizer is another one"] if wrong else [])
    short = level_of(1, 1, [[replace(found, prompt_len=100)]])
    assert short.problems() == [], "a template adds much to a short prompt"


def test_a_request_whose_cached_tokens_are_not_told_is_in_no_hit_rate() -> None:
    found = level_of(2, 1, [[outcome(0.1, 100, 80)], [outcome(0.1, 900, None)]])
    (turn,) = found.by_turn()
    assert (turn["hit_rate"], turn["without_cached_tokens"]) == (0.8, 1)
    assert found.json()["hit_rate_later"] is None


def document_of(*levels: AgentsLevel) -> dict[str, Any]:
    settings = LoadSettings(agents=tuple(level.num_agents for level in levels), turns=3, seed=1)
    found = AgentsLoad(settings, "t", list(levels))
    return {
        "kind": "agents", "complete": True, "stopped": None, "ok": False,
        "problems": found.problems(), "environment": ENVIRONMENT, "server": SERVER,
        "settings": found.settings.json(), "results": found.json(),
    }  # fmt: skip


def test_a_report_shows_the_turns() -> None:
    page = render([("agents", document_of(known()))])
    assert "Prompt tokens that were cached" in page
    assert "from turn 2 on" in page
    assert "stalled" in page


def test_a_report_shows_what_a_user_and_a_gpu_get_of_all_loads_in_one_figure() -> None:
    one = level_of(1, 3, [[outcome(0.1, 100, 90)] * 3])
    parts = contents([("ours", document_of(one, known())), ("theirs", document_of(one))], View())
    titles = [figure.title for part in parts for figure in part.figures]
    trade = "Throughput over tokens a second of a user"
    assert titles.count(trade) == 1
    (figure,) = [each for part in parts for each in part.figures if each.title == trade]
    assert [line.name for line in figure.chart.lines] == ["ours", "theirs"]
    assert [list(line.labels) for line in figure.chart.lines] == [["1", "2"], ["1"]]
    assert figure.chart.lines[0].points[0][0] == pytest.approx(1.0), "a token a second"
    per_gpu = contents([("ours", document_of(one))], View(gpus=[2]))
    (figure,) = [each for part in per_gpu for each in part.figures if "per GPU" in each.title]
    whole = one.json()["output_tok_s"]
    assert figure.chart.lines[0].points[0][1] == pytest.approx(whole / 2)
