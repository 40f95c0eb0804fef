"""What the pools have to do, and how fast the workers are, by their messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.step_meter import STEP_GROWTH, STEPS_S, StepMeter, StepTimes
from coordinator.core.workers.prompt_meter import MEMORY_S, PromptMeter
from coordinator.core.workers.worker import Worker
from tests.coordinator.desk import Desk


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


@dataclass
class Decoding:
    """What the meter asks of a worker."""

    num_decoded: int = 0
    num_step_tokens: int = 0
    num_prompt_tokens: int = 0


def measured(rows: Sequence[int], prompt_tok_s: int = 0) -> tuple[int, float] | None:
    """What is measured of a worker that has so many sequences, each for a tenth of STEPS_S, whose
    steps take 10 ms. The prompts beside them leave the steps less time."""
    worker, look_s = Decoding(rows[0]), STEPS_S / len(rows)
    meter = StepMeter.of(cast(Worker, worker), 0.0)
    for number, sequences in enumerate(rows, 1):
        worker.num_prompt_tokens += round(prompt_tok_s * look_s)
        for_steps_s = look_s * (1 - prompt_tok_s / 10_000)
        worker.num_step_tokens += round(sequences * for_steps_s / 0.010)
        worker.num_decoded = sequences
        meter.look(cast(Worker, worker), number * look_s)
    return meter.step(cast(Worker, worker), prefill_tok_s=10_000)


def test_steps_are_measured_right_while_sequences_come() -> None:
    found = measured([1, 2, 4, 8, 12, 16, 20, 24, 28, 32])
    assert found is not None
    rows, seconds = found
    assert rows == pytest.approx(15, abs=2)
    assert seconds == pytest.approx(0.010, rel=0.15)


def test_the_time_of_prompts_beside_steps_is_none_of_theirs() -> None:
    assert measured([8] * 10, prompt_tok_s=4_000) == (8, pytest.approx(0.010, rel=0.01))


def test_steps_are_not_measured_while_prompts_take_most_of_the_time() -> None:
    assert measured([8] * 10, prompt_tok_s=6_000) is None


def test_a_worker_without_sequences_has_no_steps() -> None:
    assert measured([0] * 10) is None


def test_prompts_are_computed_in_turn_so_waiting_is_no_work() -> None:
    meter = PromptMeter()
    meter.ended(1_000, 1_000, assigned_at=10.0, now=10.5, alone=True)
    meter.ended(1_000, 3_000, assigned_at=10.0, now=11.0, alone=True)
    meter.ended(500, 500, assigned_at=20.0, now=20.25, alone=True)
    assert meter.num_timed / meter.busy_s == pytest.approx(2_000)
    assert meter.num_prompt == 4_500


def test_old_prompts_count_less_and_less() -> None:
    meter, now = PromptMeter(), 0.0
    for tok_s in [1_000] * 100 + [4_000] * 100:
        now += 1.0
        meter.ended(tok_s, tok_s, assigned_at=now - 1.0, now=now, alone=True)
    assert meter.busy_s <= MEMORY_S
    assert meter.num_timed / meter.busy_s == pytest.approx(4_000, rel=0.01)


def test_the_load_counts_what_waits_and_what_has_come() -> None:
    desk = Desk(())
    for name in ("p-1", "d-1", "d-2"):
        desk.join(name)
    workers, meter = list(desk.registry.all()), PoolMeter()
    assert meter.prefill_tok_s() == 0.0
    load = meter.load(workers, 0, now=1.0)
    assert (load.num_prefill, load.num_decode, load.tokens_waiting) == (1, 2, 0)
    request = desk.submit("r")
    load = meter.load(workers, 100, now=1.25)
    assert load.tokens_waiting == request.num_tokens + 100
    assert load.tokens_arrived == load.tokens_waiting
    assert meter.load(workers, 100, now=1.5).tokens_arrived == 0


def test_what_was_computed_meanwhile_has_come_too() -> None:
    desk = Desk(())
    worker = desk.join("p-1")
    meter = PoolMeter()
    (worker,) = desk.registry.all()
    meter.load([worker], 0, now=1.0)
    worker.heard_at = 2.0
    worker.note_prompt(300, 600, assigned_at=1.5)
    load = meter.load([worker], 1_000, now=2.0)
    assert meter.prefill_tok_s() == pytest.approx(600)
    assert load.tokens_waiting == 500, "half of such prompts was not computed but reused"
    assert load.tokens_arrived == 800
