"""How fast a spread group is while prompts keep coming, in simulated time."""

import random
from collections.abc import Callable

import pytest

from decode.lockstep import WINDOW
from engine.cuda_parts import SPREAD_WAIT_S
from tests.simulation.timed import TimedPair, Times
from tests.simulation.timed_lender import TimedLender

LOCAL_S, SPREAD_S, TOKEN_S = 0.014, 0.010, 0.000_25
LAUNCH_S = 0.018
TIMES = Times(
    lambda rows: LOCAL_S, lambda rows: SPREAD_S, lambda num_tokens: num_tokens * TOKEN_S, LAUNCH_S
)
"""About those of an H200 with 40 sequences; a token stands for twenty."""
SECONDS = 6.0
NUM_SEQUENCES = 4
PART = 3
"""Prompts take one of so many parts of the time."""


def pair_with(
    wait_s: Callable[[], float], length: Callable[[], int], *, both: bool, num_decoding: int = 2
) -> TimedPair:
    """A pair that has decoded for ``SECONDS``, or the first ``num_decoding`` of it. A prompt of
    ``length`` came after each ``wait_s``: to the second worker, or to ``both`` in turn."""
    pair = TimedPair(TIMES)
    for worker in pair.workers[:num_decoding]:
        for _ in range(NUM_SEQUENCES):
            worker.ask(8, 4_000)

    def come() -> None:
        number = 0
        while True:
            pair.stage.sleep(wait_s())
            number += 1
            pair.workers[number % 2 if both else 1].ask(length(), 1)

    pair.stage.act(come)
    pair.stage.run(SECONDS)
    return pair


def pair_with_prompts_of(prompt_s: float, *, both: bool, num_decoding: int = 2) -> TimedPair:
    """Prompts that each take ``prompt_s``."""
    length = round(prompt_s / TOKEN_S)
    return pair_with(lambda: PART * prompt_s, lambda: length, both=both, num_decoding=num_decoding)


@pytest.mark.parametrize("prompt_s", [0.02, 0.03, 0.04, 0.06, 0.1])
@pytest.mark.parametrize("both", [False, True], ids=["at one", "at both"])
def test_prompts_make_nobody_late_and_most_other_steps_are_spread(
    prompt_s: float, both: bool
) -> None:
    pair = pair_with_prompts_of(prompt_s, both=both)
    assert [worker.num_late for worker in pair.workers] == [0, 0]
    first, second = (SECONDS / len(worker.session.tokens_at) for worker in pair.workers)
    spread_share = 1 - (2 if both else 1) / PART
    first_share = 1 - 1 / (2 * PART) if both else 1.0
    possible_s = 1 / (spread_share / SPREAD_S + (first_share - spread_share) / LOCAL_S)
    assert first < 1.09 * possible_s, "as if steps were spread whenever no prompts are computed"
    assert second < 1.07 * SPREAD_S * PART / (PART - 1)


def test_many_short_prompts_at_both_do_not_keep_a_pair_from_its_steps() -> None:
    pair = pair_with_prompts_of(0.01, both=True)
    assert all(worker.spread_share > 0.8 for worker in pair.workers)
    longest_s = max(ttft_s for worker in pair.workers for ttft_s in worker.session.ttfts_s)
    assert longest_s < 2 * WINDOW * SPREAD_S


@pytest.mark.parametrize("every_s", [0.03, 0.06, 0.12])
@pytest.mark.parametrize("both", [False, True], ids=["at one", "at both"])
def test_no_step_aborts_because_of_prompts_of_all_lengths(every_s: float, both: bool) -> None:
    draw = random.Random(3)
    pair = pair_with(
        lambda: draw.expovariate(1 / every_s),
        lambda: min(480, round(draw.lognormvariate(4.0, 0.9))),
        both=both,
    )
    assert [worker.num_late for worker in pair.workers] == [0, 0]
    assert pair.longest_wait_s < SPREAD_WAIT_S / 2, "GPUs may differ more than that in speed"


@pytest.mark.parametrize("prompt_s", [0.045, 0.06, 0.1])
def test_a_member_without_sequences_soon_shares_the_steps_again_behind_prompts(
    prompt_s: float,
) -> None:
    pair = pair_with_prompts_of(prompt_s, both=False, num_decoding=1)
    step_s = SECONDS / len(pair.workers[0].session.tokens_at)
    assert step_s < 1.06 / ((1 - 1 / PART) / SPREAD_S + 1 / PART / LOCAL_S)
    assert [worker.num_late for worker in pair.workers] == [0, 0]


@pytest.mark.parametrize("prompt_s", [0.02, 0.03, 0.06, 0.1])
def test_a_lender_shares_the_steps_while_it_has_no_prompts(prompt_s: float) -> None:
    site = TimedLender(TIMES, alone_s=1.1 * LOCAL_S)
    for _ in range(NUM_SEQUENCES):
        site.decode(4_000)

    def come() -> None:
        while True:
            site.stage.sleep(PART * prompt_s)
            site.compute(round(prompt_s / TOKEN_S))

    site.stage.act(come)
    site.stage.run(SECONDS)
    step_s = SECONDS / len(site.decoding.tokens_at)
    share = 1 - 1 / PART
    assert step_s < 1.12 / (share / SPREAD_S + (1 - share) / LOCAL_S)
    longest_s = max(site.computing.ttfts_s)
    assert longest_s < prompt_s + 3 * SPREAD_S, "it waits for two steps, and for no other prompt"
