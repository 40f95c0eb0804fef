"""Far less memory than the requests want: they wait and give way, and all finish right."""

import random

import httpx

from tests.e2e.conftest import Start
from tests.e2e.records import outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream, all_ended

PAGE_SIZE = 16
NUM_PAGES = 24
NUM_STATE_SLOTS = 6


def streams(url: str) -> list[Stream]:
    """Forty requests; any of them fits the small pools, and five fill them."""
    draw = random.Random(3)
    shapes = [(draw.randint(1, 150), draw.randint(20, 120)) for _ in range(39)]
    shapes.append((NUM_PAGES * PAGE_SIZE - 100, 100))  # the longest that fits, all alone
    return [
        Stream(
            url,
            [draw.randrange(260) for _ in range(prompt_len)],
            max_tokens=num_tokens,
            seed=i,
            temperature=float(i % 2),
        )
        for i, (prompt_len, num_tokens) in enumerate(shapes)
    ]


async def test_all_finish_as_with_plenty(start: Start, baton: Stack) -> None:
    plenty = await all_ended(streams(baton.url))
    small = start(
        served("per_expert"),
        heartbeat=0.25,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        num_state_slots=NUM_STATE_SLOTS,
        max_batch_tokens=128,
        poison=True,
        verify_handoff=True,
    )
    answers = await all_ended(streams(small.url))
    assert [answer.error for answer in answers] == [None] * len(answers)
    assert [answer.seen for answer in answers] == [answer.seen for answer in plenty]
    await small.idle(num_workers=2)
    with small.redis() as server:
        records = await settled(server, outcomes(answers))
    assert sum(int(record["attempt"]) > 1 for record in records.values()) > 0, "none gave way"
    async with httpx.AsyncClient(base_url=small.url) as http:
        body = {"prompt": [1] * (NUM_PAGES * PAGE_SIZE - 99), "max_tokens": 100}
        refused = await http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert str(NUM_PAGES * PAGE_SIZE) in refused.json()["error"]["message"]
    assert small.stop() == 0
