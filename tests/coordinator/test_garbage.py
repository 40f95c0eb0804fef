"""Full searches happen when nobody waits, and only after there was work."""

import gc
from collections.abc import Iterator

import pytest

from coordinator.garbage import THRESHOLDS, Sweeper, freeze_startup_objects


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
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > len(made_at_start)


def test_it_searches_once_after_work_and_never_while_somebody_waits(
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
