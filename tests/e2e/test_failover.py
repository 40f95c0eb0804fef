"""The only prefill worker is gone: decode workers compute prompts until it is back."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.records import Records, outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended
from tests.e2e.waiting import eventually

NUM_WORKERS = 3
FIRST_TOKEN_S = 5.0
"""Far more than the second that it takes at most, as the machine may be busy; less than a start."""
PROBLEM = "no live prefill worker: decode workers compute prompts"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "heartbeat": 0.25,
    "dead_after": 3.0,
    "page_size": 16,
    "num_pages": 1024,
    "max_tokens_beside_decode": 64,
    "poison": True,
    "verify_handoff": True,
}


def stream(baton: Stack, number: int, max_tokens: int = 60) -> Stream:
    """The stream of this number, greedy or sampled, the same every time."""
    prompt = [(7 * number + i) % 260 for i in range([200, 17, 90][number % 3])]
    return Stream(
        baton.url, prompt, max_tokens=max_tokens, seed=number, temperature=float(number % 2)
    )


@pytest.fixture(scope="module")
def baton() -> Iterator[Stack]:
    args = ("--prefill", "1", "--decode", "2")
    with ending_well(Stack(served("multimodal"), *args, **SETTINGS)) as stack:
        yield stack
        stack.process.send_signal(signal.SIGCONT)  # a test that failed may have left it stopped


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drains"])
async def test_the_next_prompt_does_not_wait_for_the_prefill_worker(
    baton: Stack, number: signal.Signals
) -> None:
    expected: list[Seen] = [s.seen for s in await all_ended([stream(baton, n) for n in range(6)])]
    running = [stream(baton, 9, max_tokens=400), stream(baton, 10, max_tokens=400)]
    for each in running:
        await each.reaches(2)
    baton.process.send_signal(signal.SIGSTOP)  # nothing is started again until the end is seen
    baton.kill("prefill-1", number)

    async def noticed() -> None:
        status = await baton.status()
        assert status["problems"] == [PROBLEM]
        assert status["ready"]

    await eventually(noticed, "that the loss shows")
    began = time.monotonic()
    first = stream(baton, 0)
    await first.reaches(1)
    took_s = time.monotonic() - began
    print(f"first token {took_s:.3f} s after the loss was noticed")
    assert took_s < FIRST_TOKEN_S
    others = [stream(baton, n) for n in range(1, 6)]
    found = [s.seen for s in await all_ended([first, *others])]
    assert found == expected, "the texts of the handoff"
    await all_ended(running)
    assert [len(s.token_ids) for s in running] == [400, 400]
    baton.process.send_signal(signal.SIGCONT)

    async def back() -> None:
        assert (await baton.status())["problems"] == []

    await eventually(back, "that a prefill worker is back", 40.0)
    last = await stream(baton, 0).ended()
    assert last.seen == expected[0]
    with baton.redis() as server:
        records = await settled(server, outcomes([first, *others, *running, last]))
    assert_computed_by_decode_worker(records, first)
    assert records[last.http_id]["prefill_worker"].startswith("prefill-")
    assert records[last.http_id]["decode_worker"].startswith("decode-")
    await baton.idle(NUM_WORKERS)


def assert_computed_by_decode_worker(records: Records, found: Stream) -> None:
    record = records[found.http_id]
    assert record["prefill_worker"] == record["decode_worker"]
    assert record["prefill_worker"].startswith("decode-")
