"""What a prefill worker says of a prompt, and what it makes of orders that come too late."""

from types import SimpleNamespace

from prefill.limits import PrefillLimits, RoundLimits
from tests.simulation.fake_engine import FakeEngine
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Cancel, LastChunk, Prefill, Prefilled, Release
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire


def test_orders_about_what_is_over_are_dropped_and_counted() -> None:
    sent: list = []
    pool = make_worker(
        FakeEngine(PoolSize(8, 4)), SimpleNamespace(send=sent.append), "prefill", instance="p-1",
        limits=RoundLimits(PrefillLimits(128, 4), 128), clock=lambda: 0.0,
    )  # fmt: skip

    def prefilled(name: str) -> Prefilled:
        pool.handle(
            Prefill(name, 1, 1, to_wire(packed((1, 2, 3))), 3, SamplingParams(), StopRule(9))
        )
        pool.step()
        return sent[-1]

    epoch = prefilled("r").offer.epoch
    pool.handle(Release("r", 1, epoch + 1))
    assert pool.gauges().stale_dropped == 1
    assert pool.gauges().offered == 1
    pool.handle(Release("r", 1, epoch))
    assert pool.gauges().stale_dropped == 1
    pool.handle(Release("r", 1, epoch))
    pool.handle(Cancel("r", 1))
    assert pool.gauges().stale_dropped == 3
    prefilled("s")
    pool.handle(Cancel("s", 1))
    assert pool.gauges().stale_dropped == 3
    assert pool.empty


def test_the_last_chunk_of_a_prompt_is_announced_when_it_is_launched() -> None:
    sent: list = []
    engine = FakeEngine(PoolSize(40, 4))
    pool = make_worker(
        engine, SimpleNamespace(send=sent.append), "prefill", instance="p-1",
        limits=RoundLimits(PrefillLimits(128, 4), 128), clock=lambda: 0.0,
    )  # fmt: skip
    pool.handle(Prefill("r", 1, 1, to_wire(packed([7] * 200)), 200, SamplingParams(), StopRule(9)))
    pool.step()
    assert sent == [], "one chunk more"
    pool.step()
    assert [type(message) for message in sent] == [LastChunk, Prefilled]
    assert sent[0] == LastChunk("r", 1)
    sent.clear()
    pool.handle(Prefill("s", 1, 2, to_wire(packed([7] * 9)), 9, SamplingParams(), StopRule(1)))
    pool.step()
    assert [type(message) for message in sent] == [Prefilled], "its only token is no handoff"
