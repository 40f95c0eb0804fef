"""Prefixes that have left the device come back from host memory, and change no token."""

from typing import Any

import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.records import outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended
from tests.e2e.test_prefix_cache import SETTINGS, SETUPS, draw
from tests.e2e.waiting import eventually

SMALL: dict[str, Any] = {**SETTINGS, "num_pages": 160, "num_state_slots": 12}
"""For two of the prompts, and free memory for a third one."""
PROMPTS = [draw(100 + n, 600) for n in range(6)]


def stream(baton: Stack, number: int, onwards: list[int]) -> Stream:
    """Greedy or sampled, the same every time."""
    prompt, temperature = [*PROMPTS[number], *onwards], float(number % 2)
    return Stream(baton.url, prompt, max_tokens=20, seed=number, temperature=temperature)


async def rounds(baton: Stack, *, saves: bool) -> tuple[list[Seen], list[Stream], list[Stream]]:
    """Each prompt, then each with more behind it, then all of these at once."""
    numbers = range(len(PROMPTS))
    first = [await stream(baton, n, []).ended() for n in numbers]
    if saves:
        await eventually(lambda: all_saved(baton), "prefixes in host memory")
    second = [await stream(baton, n, draw(n, 30)).ended() for n in numbers]
    third = await all_ended([stream(baton, n, draw(n, 90)) for n in numbers])
    return [each.seen for each in [*first, *second, *third]], second, third


async def all_saved(baton: Stack) -> None:
    workers = (await baton.status())["workers"]
    saved = max(worker["kept_prefixes_host"] for worker in workers)
    assert saved >= len(PROMPTS) // 2, f"{saved} prefixes in host memory"


@pytest.fixture(scope="module")
def cold_texts() -> list[Seen]:
    """What ``cold`` answers; filled by the first set-up that asks."""
    return []


@pytest.mark.parametrize("setup", SETUPS)
async def test_evicted_prefixes_come_back_and_the_tokens_are_those_of_a_cold_server(
    cold: Stack, cold_texts: list[Seen], setup: str
) -> None:
    if not cold_texts:
        cold_texts += (await rounds(cold, saves=False))[0]
    args = (*SETUPS[setup], "--host-cache", "0.2")
    with ending_well(Stack(served("per_expert"), *args, **SMALL)) as baton:
        seen, second, third = await rounds(baton, saves=True)
        assert seen == cold_texts
        with baton.redis() as server:
            records = await settled(server, outcomes([*second, *third]))
        again = [records[each.http_id] for each in second]
        from_host = [r for r in again if r.get("reused") == "host"]
        assert len(from_host) >= len(PROMPTS) // 2, [r.get("reused") for r in again]
        assert all(int(r["num_reused"]) >= 512 for r in from_host)
        await baton.idle(1 if setup == "colocated" else 2)
