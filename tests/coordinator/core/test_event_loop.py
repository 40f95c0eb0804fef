"""The event loop: full searches for garbage happen when no request is open, and lag is noticed."""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from coordinator.core.event_loop import Sweeper, freeze_startup_objects, watch_lag


@pytest.fixture
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("restored")
def test_what_start_up_made_is_not_searched_again() -> None:
    made_at_start = [[number] for number in range(100)]
    freeze_startup_objects()
    assert gc.get_freeze_count() > len(made_at_start)


def test_it_searches_once_after_work_and_never_while_a_request_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = []
    monkeypatch.setattr(gc, "collect", lambda: searches.append(1))
    sweeper = Sweeper()
    sweeper.tick(num_open=0, num_accepted=0)
    sweeper.tick(num_open=3, num_accepted=5)
    assert searches == []
    sweeper.tick(num_open=0, num_accepted=5)
    sweeper.tick(num_open=0, num_accepted=5)
    assert len(searches) == 1
    sweeper.tick(num_open=0, num_accepted=6)
    assert len(searches) == 2


async def test_a_loop_that_stands_still_is_late_by_as_much() -> None:
    seen: list[float] = []
    told = asyncio.Event()

    def observe(lag_s: float) -> None:
        seen.append(lag_s)
        told.set()

    watcher = asyncio.create_task(watch_lag(observe, period_s=0.01))
    await asyncio.wait_for(told.wait(), 5.0)
    told.clear()
    stood_at = time.monotonic()
    while time.monotonic() - stood_at < 0.1:
        pass
    await asyncio.wait_for(told.wait(), 5.0)
    watcher.cancel()
    assert seen[-1] >= 0.08
    assert min(seen) >= 0.0
