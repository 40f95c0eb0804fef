"""Offers that would end the decode worker that pulls them."""

import pytest

from coordinator.core.breaker import Breaker, BreakerSettings
from coordinator.core.contract import SequenceRequest
from coordinator.core.inbox import offer_problem
from coordinator.core.registry import Worker
from coordinator.core.request import Request, State
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.messages import Hello, MemoryExport, Offer, Prefilled, TokenOut, WorkerGauges
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

EXPORT = MemoryExport("shm", "h", 1, CacheLayout("float32", 16, *[1] * 9), PoolSize(8, 4))
GOOD = Offer("p-1", (0, 7), 3, 1, 20)


def problem(offer: Offer | None, *, role: str = "prefill", attempt: int = 1) -> str:
    hello = Hello("p-1", role, "m", "cpu", 1, 128, 8, EXPORT)  # type: ignore[arg-type]
    spec = SequenceRequest("r", packed(range(20)), SamplingParams(), StopRule(4))
    request = Request(spec, 1, State.PREFILLING, attempt=1, prefill_worker="p-1")
    message = Prefilled(TokenOut("r", attempt, 0, 7), offer, 1.0, 2.0)
    worker = Worker(hello, WorkerGauges(8, 4), 0.0, breaker=Breaker(BreakerSettings()))
    return offer_problem(message, worker, request)


@pytest.mark.parametrize(
    ("offer", "part"),
    [
        (Offer("p-2", (0, 7), 3, 1, 20), "p-2's memory"),
        (Offer("p-1", (0, 7), 3, 1, 19), "19 tokens, ordered were 20"),
        (Offer("p-1", (0,), 3, 1, 20), "1 pages, not 2"),
        (Offer("p-1", (0, 8), 3, 1, 20), "page 8, of 8"),
        (Offer("p-1", (0, 7), 4, 1, 20), "state slot 4, of 4"),
    ],
)
def test_a_wrong_offer_is_named(offer: Offer, part: str) -> None:
    assert part in problem(offer)
    assert problem(offer, attempt=0) == "", "stale, so dropped as such"


def test_a_right_one_passes() -> None:
    assert problem(GOOD) == problem(None) == ""


def test_a_colocated_worker_offers_nothing() -> None:
    assert "role colocated" in problem(GOOD, role="colocated")
