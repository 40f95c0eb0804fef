"""The bundled problems, against a server whose every answer is known."""

import asyncio
from typing import Any

import pytest

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.endpoint import Deadlines
from bench.harness.correctness.outcome import CorrectnessSettings, Outcome
from bench.harness.correctness.run import ask_bundled
from tests.bench.correctness.oracle import Say, oracle
from tests.bench.sessions import session

PROBLEMS = [(f"What is {i} + {i}?", str(2 * i)) for i in range(20)]
_RIGHT = dict(PROBLEMS)


def question(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def ask(say: Say, **settings: Any) -> Outcome:
    async def run() -> Outcome:
        with oracle(say) as (url, _):
            limits = Deadlines(first_byte_s=2.0, stall_s=2.0, request_s=2.0)
            async with session(url, "oracle", limits) as given:
                asked = CorrectnessSettings("bundled", **settings)
                return await ask_bundled(asked, given, PROBLEMS)

    return asyncio.run(run())


def test_every_right_answer_counts_and_every_wrong_one_is_listed() -> None:
    def say(body: dict[str, Any]) -> str:
        asked = question(body)
        if asked == "What is 3 + 3?":
            return "3 + 3 = 7\n#### 7"
        if asked == "What is 4 + 4?":
            return "That makes 8."
        return f"It is easy.\n#### {_RIGHT[asked]}"

    found = ask(say)
    assert found.scores == {"strict": 0.9, "flexible": 0.95}
    assert [one["problem"] for one in found.wrong] == [3, 4]
    assert found.passed
    assert not ask(say, gate=0.91).passed
    assert ask(say, gate=0.91, gated="flexible").passed


def test_requests_are_greedy_and_no_more_than_asked_for_at_once() -> None:
    def say(body: dict[str, Any]) -> str:
        assert body["temperature"] == 0
        assert body["model"] == "oracle"
        return f"#### {_RIGHT[question(body)]}"

    assert ask(say, concurrency=3).scores["strict"] == 1.0


@pytest.mark.parametrize(
    ("error", "named"),
    [(RuntimeError("out of order"), "http: .*out of order"), (ConnectionAbortedError(), "dropped")],
)
def test_a_request_that_fails_is_no_measurement(error: Exception, named: str) -> None:
    def say(body: dict[str, Any]) -> str:
        if question(body) == "What is 7 + 7?":
            raise error
        return f"#### {_RIGHT[question(body)]}"

    with pytest.raises(CannotMeasure, match=f"problem 7: {named}"):
        ask(say)
