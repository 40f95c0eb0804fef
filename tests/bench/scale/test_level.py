"""One level against a stub server, which has neither Baton's metrics nor a Redis."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bench.harness.client.exchange import Exchange
from bench.harness.run_control import Patience
from bench.harness.scale.plan import ScalePlan
from bench.harness.scale.run import ScaleReport, crowded, line, run_level
from bench.harness.scale.server_side import Ledger
from tests.bench.sessions import session
from tests.bench.stub import Behaviour, Stub

ServeStub = Callable[[Behaviour], Stub]
PLAN = ScalePlan(levels=(40,), input_len=(4, 8), output_len=6)


def level(stub: Stub, number: int = 40) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with session(stub.url, patience=Patience(1000)) as given:
            return await run_level(given, PLAN, number, Ledger(None))

    return asyncio.run(run())


def test_every_request_ends_once_and_the_level_is_reached(serve_stub: ServeStub) -> None:
    stub = serve_stub(Behaviour(ttft_s=0.2, itl_s=0.001))
    found = level(stub)
    assert found["ends"] == {"finished": 44, "failed": 0, "refused": 0, "lost": 0}
    assert found["most_open"]["client"] == 40
    assert (found["redis"], found["coordinator"]) == ("not offered", "not offered")
    assert found["passed"]
    assert 0.2 <= found["seconds"]["p50"] <= found["seconds"]["most"]
    assert len(stub.served) == 44
    assert line(found).startswith("40 at once: 40 open at most, 44 finished in ")


@pytest.mark.parametrize("fault", ["drop", "truncate", "error"])
def test_what_goes_wrong_is_counted_and_named(serve_stub: ServeStub, fault: Any) -> None:
    found = level(serve_stub(Behaviour(ttft_s=0.01, itl_s=0.0, fault=fault, fault_every=4)))
    bad = "failed" if fault == "error" else "lost"
    assert (found["ends"]["finished"], found["ends"][bad]) == (33, 11)
    assert found["num_problems"] == 11
    report = ScaleReport([found])
    assert len(report.problems()) == 11
    assert report.headline()[bad] == 11


def test_answers_of_the_wrong_length_are_lost(serve_stub: ServeStub) -> None:
    found = level(serve_stub(Behaviour(ttft_s=0.01, itl_s=0.0, usage_factor=0.5)), number=10)
    assert found["ends"]["lost"] == 11
    assert "with 3 tokens, not 6" in found["problems"][0]


def test_the_most_that_were_open_at_once() -> None:
    spans = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (2.5, 3.5)]
    exchanges = [Exchange(begin, done_at_s=end) for begin, end in spans]
    assert crowded(exchanges) == (3, 2.5)  # one ends when the next begins: not both are open
