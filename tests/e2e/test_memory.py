"""Far less memory than the requests want: they wait and give way, and all finish right."""

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.records import outcomes, records, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended
from tests.e2e.waiting import eventually

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


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    stack = Stack(
        served("per_expert"),
        heartbeat=0.25,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        num_state_slots=NUM_STATE_SLOTS,
        max_batch_tokens=128,
        poison=True,
        verify_handoff=True,
    )
    with ending_well(stack):
        yield stack


@pytest.fixture(scope="module")
def plenty() -> list[Seen]:
    """What ``streams`` yields with room for all; filled by the first test that asks."""
    return []


@pytest.fixture
async def expected(baton: Stack, plenty: list[Seen]) -> list[Seen]:
    if not plenty:
        plenty += [answer.seen for answer in await all_ended(streams(baton.url))]
    return plenty


async def test_all_finish_as_with_plenty(small: Stack, expected: list[Seen]) -> None:
    answers = await all_ended(streams(small.url))
    assert [answer.error for answer in answers] == [None] * len(answers)
    assert [answer.seen for answer in answers] == expected
    await small.idle(num_workers=2)
    with small.redis() as server:
        known = await settled(server, outcomes(answers))
    assert sum(int(record["attempt"]) > 1 for record in known.values()) > 0, "none gave way"


async def test_clients_leave_while_they_wait(small: Stack, expected: list[Seen]) -> None:
    clients = streams(small.url)
    with small.redis() as server:

        async def waiting() -> list[Stream]:
            assert any(len(client.token_ids) >= 5 for client in clients), "none streams yet"
            known = records(server)
            queued = {http_id for http_id in known if known[http_id]["state"] == "queued"}
            found = [client for client in clients if client.http_id in queued]
            assert found, "Redis says that none is queued"
            return found

        gone = await eventually(waiting, "some stream while others wait")
        await asyncio.gather(*(client.disconnect() for client in gone))
        await all_ended(clients)
        for client, seen in zip(clients, expected, strict=True):
            assert client in gone or client.seen == seen
        assert {client.outcome for client in gone} == {"cancelled"}
        await small.idle(num_workers=2)
        await settled(server, outcomes(clients))


async def test_what_can_never_fit_is_refused(small: Stack) -> None:
    async with httpx.AsyncClient(base_url=small.url) as http:
        body = {"prompt": [1] * (NUM_PAGES * PAGE_SIZE - 99), "max_tokens": 100}
        refused = await http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert str(NUM_PAGES * PAGE_SIZE) in refused.json()["error"]["message"]
