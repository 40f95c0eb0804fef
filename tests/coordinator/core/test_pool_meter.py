"""What the pools have to do, and how fast the workers are, by their messages."""

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.request import Request, State
from coordinator.core.step_times import STEP_GROWTH, StepTimes
from coordinator.core.workers.prompt_meter import MEMORY_S, PromptMeter, tok_s
from coordinator.core.workers.step_clock import StepClock
from coordinator.core.workers.worker import Worker
from tests.coordinator.desk import Desk
from transport.wire.messages import TokenOut
from transport.wire.reports import PromptCounts
from transport.wire.spread import SpreadCounts


def test_a_step_between_two_measured_ones_and_beyond_them() -> None:
    steps = StepTimes()
    assert steps.seconds(8) == 0.0
    steps.note(8, 0.010)
    assert steps.seconds(16) == pytest.approx(0.010 * (1 + STEP_GROWTH))
    steps.note(32, 0.022)
    assert steps.seconds(8) == pytest.approx(0.010)
    assert steps.seconds(20) == pytest.approx(0.016)
    assert steps.seconds(64) == pytest.approx(0.022 * (1 + STEP_GROWTH))
    assert steps.seconds(4) == pytest.approx(0.010 * (1 - STEP_GROWTH / 2))


def test_a_step_of_few_sequences_takes_at_most_what_one_of_more_gives_it() -> None:
    steps = StepTimes()
    steps.note(32, 0.030)  # local, since prompts were computed
    steps.note(64, 0.020)
    assert steps.seconds(32) == pytest.approx(0.020 * (1 - STEP_GROWTH / 2))
    assert steps.seconds(48) == pytest.approx(0.020 * (1 - STEP_GROWTH / 4))
    steps.note(8, 0.005)
    assert steps.seconds(8) == pytest.approx(0.005)


def timed(*steps: tuple[float, int]) -> list[tuple[float, float]]:
    """What is measured of steps, each by its end and its sequences; the first one goes ahead."""
    clock = StepClock()
    for now, number in ((0.0, 1), *steps):
        clock.note(number, number, now, num_prompt=0, has_prompts=False, goes_on=True)
    return list(clock.taken())


def test_steps_are_measured_by_the_number_of_their_sequences() -> None:
    found = timed((0.010, 8), (0.020, 8), (0.040, 20), (0.060, 20))
    assert found == [(8, pytest.approx(0.010)), (20, pytest.approx(0.020))]


def test_a_step_with_drafts_gives_a_sequence_several_tokens() -> None:
    clock = StepClock()
    for now in (0.0, 0.030):
        clock.note(4, 12, now, num_prompt=0, has_prompts=False, goes_on=True)
    assert list(clock.taken()) == [(4, pytest.approx(0.010))]


@pytest.mark.parametrize("beside", [
    {"num_prompt": 500}, {"has_prompts": True}, {"goes_on": False},
])  # fmt: skip
def test_the_time_of_prompts_and_of_waiting_is_none_of_the_steps(beside: dict[str, Any]) -> None:
    alone = {"num_prompt": 0, "has_prompts": False, "goes_on": True}
    for first, second in ((alone | beside, alone), (alone, alone | beside)):
        clock = StepClock()
        clock.note(4, 4, 1.0, **first)
        clock.note(4, 4, 9.0, **second)
        assert len(list(clock.taken())) == (second["goes_on"] is False)


def test_the_meter_knows_the_steps_of_a_worker() -> None:
    desk = Desk(("p-1", "d-1"))
    worker, meter = desk.registry.require("d-1"), PoolMeter()
    request = desk.submit("r")
    desk.prefill(request)
    desk.land(request)
    for now in (1.0, 1.010, 1.020):
        worker.note_step((TokenOut("r", 1, 1, 7),), now)
    meter.load([worker], 0)
    assert meter.step_s(1) == pytest.approx(0.010)


def test_a_step_of_a_group_is_no_measure_for_a_member_with_few_sequences() -> None:
    desk, meter = Desk(("d-1", "d-2")), PoolMeter()
    full, other = workers = [desk.registry.require(name) for name in ("d-1", "d-2")]
    requests = [desk.submit(f"r-{i}") for i in range(9)]
    for i, request in enumerate(requests):
        request.decode_worker = "d-2" if i == 8 else "d-1"
        request.state = State.DECODING
        desk.registry.require(request.decode_worker).load.add(request)

    def steps(worker: Worker, of: Sequence[Request], step_s: float) -> None:
        for now in (1.0, 1.0 + step_s):
            worker.note_step([TokenOut(r.request_id, 1, 1, 7) for r in of], now)

    steps(other, requests[8:], 0.003)
    meter.load(workers, 0)
    for worker in workers:
        worker.spread.note(SpreadCounts(num_members=2), 1.0)
        worker.spread.note(SpreadCounts(num_members=2, num_steps=9), 2.0)
    steps(full, requests[:8], 0.010)
    steps(other, requests[8:], 0.010)
    meter.load(workers, 0)
    assert meter.step_s(8) == pytest.approx(0.010)
    assert meter.step_s(1) == pytest.approx(0.003), "as it takes alone"


def test_prompts_are_computed_in_turn_so_waiting_is_no_work() -> None:
    meter = PromptMeter()
    meter.ended(1_000, 1_000, assigned_at=10.0, now=10.5, alone=True)
    meter.ended(1_000, 3_000, assigned_at=10.0, now=11.0, alone=True)
    meter.ended(500, 500, assigned_at=20.0, now=20.25, alone=True)
    assert tok_s([meter]) == pytest.approx(2_000)
    assert meter.num_prompt == 4_500


def test_the_newest_prompts_count_most_in_their_mean_length() -> None:
    desk, meter = Desk(("p-1", "d-1")), PoolMeter()
    workers = [desk.registry.require(name) for name in ("p-1", "d-1")]
    meter.load(workers, 0)
    assert meter.prompt_len() == 1_000.0, "nothing is known"
    for _ in range(20):
        workers[0].note_prompt(256, 512, 0.0)
    meter.load(workers, 0)
    assert meter.prompt_len() == pytest.approx(256)
    for worker in workers:
        for _ in range(4):
            worker.note_prompt(8_192, 8_192, 0.0)
    meter.load(workers, 0)
    assert 5_000 < meter.prompt_len() < 8_000


def test_the_speed_of_a_busy_worker_is_that_of_prompts_without_a_pause() -> None:
    meter = PromptMeter()
    meter.ended(1_000, 1_000, assigned_at=10.0, now=10.1, alone=True)
    assert tok_s([meter]) == pytest.approx(10_000), "nothing else is known"
    for assigned_at in (20.0, 20.05, 20.06, 20.07, 20.08):
        meter.ended(1_000, 1_000, assigned_at, now=20.1, alone=True)  # together
    assert tok_s([meter]) == pytest.approx(50_000)
    meter.ended(1_000, 1_000, assigned_at=30.0, now=30.1, alone=True)
    assert tok_s([meter]) == pytest.approx(50_000)


def test_the_speed_is_that_of_the_workers_own_times_if_they_have_any() -> None:
    meter = PromptMeter()
    meter.ended(1_000, 1_000, assigned_at=10.0, now=10.1, alone=True)
    meter.note_batches(PromptCounts(9_000, 0.5))  # for another coordinator, maybe
    assert tok_s([meter]) == pytest.approx(10_000)
    meter.note_batches(PromptCounts(13_000, 0.55))
    assert tok_s([meter, PromptMeter()]) == pytest.approx(80_000)
    meter.note_batches(PromptCounts(13_000, 0.55))
    assert tok_s([meter]) == pytest.approx(80_000)


def test_old_prompts_count_less_and_less() -> None:
    meter, now = PromptMeter(), 0.0
    for num_tokens in [1_000] * 100 + [4_000] * 100:
        now += 1.0
        meter.ended(num_tokens, num_tokens, assigned_at=now - 1.0, now=now, alone=True)
    assert meter.timed.seconds <= MEMORY_S
    assert tok_s([meter]) == pytest.approx(4_000, rel=0.01)


def test_the_load_counts_what_waits_and_what_has_come() -> None:
    desk = Desk(())
    for name in ("p-1", "d-1", "d-2"):
        desk.join(name)
    workers, meter = list(desk.registry.all()), PoolMeter()
    assert meter.prefill_tok_s() == 0.0
    load = meter.load(workers, 0)
    assert (load.num_prefill, load.num_decode, load.tokens_waiting) == (1, 2, 0)
    request = desk.submit("r")
    load = meter.load(workers, 100)
    assert load.tokens_waiting == request.num_tokens + 100
    assert load.tokens_arrived == load.tokens_waiting
    assert meter.load(workers, 100).tokens_arrived == 0


def test_what_was_computed_meanwhile_has_come_too() -> None:
    desk = Desk(())
    worker = desk.join("p-1")
    meter = PoolMeter()
    (worker,) = desk.registry.all()
    meter.load([worker], 0)
    worker.heard_at = 2.0
    worker.note_prompt(300, 600, assigned_at=1.5)
    load = meter.load([worker], 1_000)
    assert meter.prefill_tok_s() == pytest.approx(600)
    assert load.tokens_waiting == 500, "half of such prompts was not computed but reused"
    assert load.tokens_arrived == 800
