"""A stack with random weights that accepts drafts with a given probability: handoffs, moves, and
what it says of itself."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream, all_ended, some_reach
from tests.e2e.test_bench_checks import bench

NUM_TOKENS, GIVEN = 150, 0.8
SETTINGS: dict[str, Any] = {"num_pages": 600, "page_size": 16, "heartbeat": 0.25, "poison": True}


@pytest.fixture(scope="module")
def given() -> Iterator[Stack]:
    arguments = ["--prefill", "1", "--decode", "2", "--load-format", "dummy", "--speculate", "3"]
    stack = Stack(TINY, *arguments, "--draft-acceptance", str(GIVEN), **SETTINGS)
    with ending_well(stack):
        yield stack


async def drafts_of(stack: Stack, stream: Stream) -> tuple[int, int]:
    """Drafts verified and accepted, as the request's own record has them."""
    async with httpx.AsyncClient(timeout=10.0) as http:
        found = (await http.get(f"{stack.url}/v1/requests/{stream.http_id}")).json()
    return found["drafts_verified"], found["drafts_accepted"]


async def test_the_server_and_results_of_benchmarks_say_that_the_acceptance_is_given(
    given: Stack, tmp_path: Path
) -> None:
    status = await given.status()
    assert status["ready"]
    assert status["problems"] == ["benchmark: drafts are accepted with a given probability of 0.8"]
    assert {each["given_acceptance"] for each in status["workers"]} == {GIVEN}
    out = tmp_path / "throughput.json"
    asked = ["--levels", "2", "--requests", "4", "--input-len", "32", "--output-len", "24"]
    code, line, printed = bench(
        "throughput", "--url", given.url, "--tokenizer", str(TINY), *asked, "--out", str(out)
    )
    assert (code, line["given_draft_acceptance"]) == (0, GIVEN)
    assert "the server accepts drafts with a given probability of 0.8" in printed
    assert json.loads(out.read_text())["server"]["given_draft_acceptance"] == GIVEN


async def test_drafts_are_accepted_through_handoffs_and_moves(given: Stack) -> None:
    streams = [
        Stream(given.url, list(range(10, 30 + number)), max_tokens=NUM_TOKENS, seed=number)
        for number in range(8)
    ]
    await some_reach(streams, 4, num_tokens=20)
    given.kill("decode-1", signal.SIGTERM)
    await all_ended(streams)
    assert (await given.moved())["moved"] > 0
    for stream in streams:
        assert (len(stream.token_ids), stream.finish) == (NUM_TOKENS, "length")
    counts = [await drafts_of(given, stream) for stream in streams]
    verified, accepted = map(sum, zip(*counts, strict=True))
    # Of three drafts 0.8 + 0.64 + 0.512 are accepted in a step.
    assert accepted / verified == pytest.approx(1.952 / 3, abs=0.08)
    await given.idle(3)
