"""Streams and arriving prompts, against a real stack."""

from bench.interference import Load, measure
from tests.e2e.stack import Stack


async def test_prompts_arrive_beside_steady_streams(baton: Stack) -> None:
    load = Load(
        num_streams=3, stream_prompt=8, stream_tokens=600, num_arrivals=40, arrival_prompt=300,
        arrival_tokens=2, every_s=0.25, vocab=256,
    )  # fmt: skip
    found = await measure(baton.url, load)
    arrivals = found["arrivals"]
    assert arrivals["sent"] >= 3  # as long as streams run
    assert arrivals["within_steady"] >= 1  # some come before all streams run, or after
    assert arrivals["failed"] == []
    assert arrivals["ttft_p50_ms"] > 0
    assert 0 < found["beside_a_prompt"]["gaps"] <= found["disturbed"]["gaps"] <= 3 * 599
    assert 0 < found["quiet"]["gaps"] <= 3 * 599  # fewer where the streams begin apart
    await baton.idle(num_workers=2)
