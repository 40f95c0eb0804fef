"""Steps that the engine took back, among those that it computed."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.batch import StepResult
from engine.sequence import Scheduled
from worker.launches import Launches

ABORTED = StepResult((), aborted=True)


class Desk:
    """``told`` is what became of each batch, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.launches = Launches(
            lambda scheduled: self.told.append(("taken back", scheduled)),
            lambda late: self.told.append(("aborted", late)),
        )

    def add(self, result: StepResult, *, spread: bool, is_done: bool = False) -> Scheduled:
        scheduled = Scheduled((), ())
        step: Any = SimpleNamespace(
            result=lambda: result, is_done=is_done, took_s=None, num_multiprocessors=1
        )
        process = lambda s, r: self.told.append(("computed", s))  # noqa: E731
        self.launches.launch(scheduled, lambda: step, process, spread=spread)
        return scheduled


def test_batches_are_taken_in_in_order_up_to_the_lookahead() -> None:
    desk = Desk()
    first, second, _ = (desk.add(StepResult(()), spread=False) for _ in range(3))
    assert desk.launches.process(behind=1) is False
    assert desk.told == [("computed", first), ("computed", second)]
    assert len(desk.launches) == 1


def test_all_that_is_launched_is_read_when_a_step_has_aborted() -> None:
    desk = Desk()
    first = desk.add(StepResult((), aborted=True, late=(2,)), spread=True)
    prompts = desk.add(StepResult(()), spread=False)
    second = desk.add(ABORTED, spread=True)
    assert desk.launches.any_spread
    assert desk.launches.process(behind=2) is True
    assert desk.told == [
        ("computed", prompts), ("aborted", (2,)), ("taken back", first), ("taken back", second),
    ]  # fmt: skip
    assert not desk.launches.any_spread


def test_a_spread_step_computed_behind_an_aborted_one_is_a_bug_of_the_engine() -> None:
    desk = Desk()
    desk.add(ABORTED, spread=True)
    desk.add(StepResult(()), spread=True)
    with pytest.raises(AssertionError, match="behind an aborted step"):
        desk.launches.process(behind=0)


def test_results_that_are_done_are_processed_without_a_wait() -> None:
    desk = Desk()
    first, second = (desk.add(StepResult(()), spread=False, is_done=True) for _ in range(2))
    desk.add(StepResult(()), spread=False)
    desk.launches.process_done()
    assert desk.told == [("computed", first), ("computed", second)]
    assert len(desk.launches) == 1


def test_nothing_is_processed_early_while_a_spread_step_may_abort() -> None:
    desk = Desk()
    desk.add(StepResult(()), spread=False, is_done=True)
    desk.add(StepResult(()), spread=True, is_done=True)
    desk.launches.process_done()
    assert desk.told == []


def test_a_batch_that_ends_unseen_takes_as_long_as_on_the_device() -> None:
    """The host launches prompts, which the device computes behind a step, for longer than the step
    takes."""
    now, free_at, took = 0.0, 0.0, []
    launches = Launches(lambda scheduled: None, lambda late: None, lambda: now)

    def launch(host_s: float, device_s: float) -> None:
        def enqueue() -> Any:
            nonlocal now, free_at
            now += host_s
            free_at = max(free_at, now) + device_s
            return SimpleNamespace(
                result=lambda: wait(free_at), took_s=device_s, num_multiprocessors=1
            )

        def wait(until: float) -> StepResult:
            nonlocal now
            now = max(now, until)
            return StepResult(())

        nothing = Scheduled((), ())
        launches.launch(nothing, enqueue, lambda s, r: took.append(launches.took_s))
        launches.process(behind=1)

    for _ in range(2):
        launch(0.001, 0.008)
        launch(0.025, 0.128)
    launches.process(behind=0)
    assert took == [0.008, 0.128] * 2


def test_a_batch_whose_time_is_not_known_takes_that_since_its_launch_or_the_one_before() -> None:
    now, took = 0.0, []
    launches = Launches(lambda scheduled: None, lambda late: None, lambda: now)

    def launch(seconds: float = 0.0) -> None:
        def enqueue() -> Any:
            nonlocal now
            now += seconds
            return SimpleNamespace(
                result=lambda: StepResult(()), took_s=None, num_multiprocessors=1
            )

        nothing = Scheduled((), ())
        launches.launch(nothing, enqueue, lambda s, r: took.append(launches.took_s))

    launch()
    now = 1.0
    launch(0.5)
    now = 3.0
    launches.process(behind=1)
    now = 4.0
    launches.process(behind=0)
    now = 10.0
    launch(0.25)
    now = 10.5
    launches.process(behind=0)
    assert took == [3.0, 1.0, 0.5]
