"""Streams and arriving prompts, against a real stack."""

import random
from dataclasses import replace

from bench.harness.interference import InterferenceSettings, measure
from bench.harness.server_info import ask_server
from tests.bench.letters import Letters
from tests.bench.sessions import session
from tests.e2e.stack import Stack


class Ids(Letters):
    def draw(self, random: random.Random, count: int) -> list[int]:
        return random.choices(range(256), k=count)


async def test_prompts_arrive_beside_steady_streams(baton: Stack) -> None:
    settings = InterferenceSettings(
        num_streams=3, stream_prompt=8, stream_tokens=300, num_arrivals=40, arrival_prompt=300,
        arrival_tokens=2, every_s=0.05,
    )  # fmt: skip
    async with session(baton.url) as given:
        given = replace(given, server=await ask_server(given.aside, None))
        found = await measure(settings, Ids(), given)
    arrivals = found["arrivals"]
    assert arrivals["sent"] >= 3  # as long as streams run
    assert arrivals["within_steady"] >= 1  # some come before all streams run, or after
    assert arrivals["failed"] == []
    assert arrivals["ttft_p50_ms"] > 0
    assert 0 < found["beside_a_prompt"]["gaps"] <= found["disturbed"]["gaps"] <= 3 * 299
    assert 0 < found["quiet"]["gaps"] <= 3 * 299  # fewer where the streams begin apart
    await baton.idle(num_workers=2)
