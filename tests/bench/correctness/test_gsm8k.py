"""The real lm-evaluation-harness, against a server whose every answer is known."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.correctness.gsm8k import run_gsm8k
from bench.harness.correctness.outcome import CorrectnessSettings, Outcome
from tests.bench.correctness.oracle import oracle
from tests.bench.sessions import session

NUM_PROBLEMS = 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Problems of our own in GSM8K's format."""
    path = tmp_path / "problems.jsonl"
    rows = [
        {
            "question": f"A box holds {n} pens. How many pens do {n} boxes hold?",
            "answer": f"Each holds {n}, so {n} * {n} = <<{n}*{n}={n * n}>>{n * n}.\n#### {n * n}",
        }
        for n in range(2, 2 + NUM_PROBLEMS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked_of(url: str, data: Path, stopped: str = "", **settings: Any) -> Outcome:
    """``stopped``: why the run is stopped before it begins."""

    async def run() -> Outcome:
        plan = CorrectnessSettings("gsm8k", 7, data, **{"limit_s": 100.0, **settings})
        async with session(url, "oracle") as given:
            if stopped:
                given.control.stop(stopped)
            return await run_gsm8k(plan, given)

    return asyncio.run(run())


def test_its_own_prompts_filters_and_scores_over_a_local_file(data: Path) -> None:
    """Of 8 problems drawn, 5 end as the few-shot examples do, 2 only hold the number, 1 is wrong:
    7 of 8 by the flexible match, which is the gate, and 5 of 8 by the strict one."""
    styles: dict[str, int] = {}

    def say(body: dict[str, Any]) -> str:
        asked = str(body["messages"][-1]["content"])
        number = int(asked.split("A box holds ")[1].split()[0])
        style = styles.setdefault(asked, len(styles))
        if style < 5:
            return f"There are {number} boxes. The answer is {number * number}."
        return f"They hold {number * number if style < 7 else 1} pens"

    with oracle(say) as (url, asked):
        found = asked_of(url, data, num_problems=8, max_tokens=99)
    assert found.num_problems == 8
    assert found.scores == {"flexible": 7 / 8, "strict": 5 / 8}
    assert found.passed
    assert len(found.wrong) == 1
    assert len(set(found.details["indices"])) == 8
    assert found.wrong[0]["problem"] in found.details["indices"]
    body = asked[0]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0, 99, "oracle")
    assert len(body["messages"]) == 17  # eight examples, each a turn and its answer, and ours
    assert "15 trees" in body["messages"][0]["content"]


def test_a_server_that_fails_for_good_is_named_with_its_words(data: Path) -> None:
    def say(body: dict[str, Any]) -> str:
        raise RuntimeError("out of order")

    failed = pytest.raises(CannotMeasure, match=r"lm-eval: .*500.*calls were made again")
    with oracle(say) as (url, _), failed:
        asked_of(url, data, num_problems=4, tries=2)


def test_a_run_that_takes_too_long_or_is_stopped_ends(data: Path) -> None:
    with pytest.raises(CannotMeasure, match="not done in 0 s"):
        asked_of("http://127.0.0.1:9", data, limit_s=0.01)
    with pytest.raises(CannotMeasure, match="was stopped"):
        asked_of("http://127.0.0.1:9", data, stopped="interrupted")


@pytest.mark.parametrize("settings", [{"num_problems": -1}, {"gate": 1.5}, {"concurrency": 0}])
def test_settings_that_make_no_sense_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        CorrectnessSettings(**settings)
