"""How fast a spread group is while prompts keep coming, in simulated time."""

import pytest

from tests.simulation.timed import TimedPair, Times

LOCAL_S, SPREAD_S, TOKEN_S = 0.014, 0.010, 0.000_25
TIMES = Times(lambda rows: LOCAL_S, lambda rows: SPREAD_S, lambda num_tokens: num_tokens * TOKEN_S)
"""About those of an H200 with 40 sequences; a token stands for twenty."""
SECONDS = 6.0
NUM_SEQUENCES = 4
PART = 3
"""Prompts take one of so many parts of the time."""


@pytest.mark.parametrize("prompt_s", [0.02, 0.03, 0.04, 0.06, 0.1])
@pytest.mark.parametrize("both", [False, True], ids=["at one", "at both"])
def test_prompts_make_nobody_late_and_most_other_steps_are_spread(
    prompt_s: float, both: bool
) -> None:
    pair = TimedPair(TIMES)
    for worker in pair.workers:
        for _ in range(NUM_SEQUENCES):
            worker.ask(8, 4_000)

    def come() -> None:
        number = 0
        while True:
            pair.stage.sleep(PART * prompt_s)
            number += 1
            pair.workers[number % 2 if both else 1].ask(round(prompt_s / TOKEN_S), 1)

    pair.stage.act(come)
    pair.stage.run(SECONDS)
    assert [worker.num_late for worker in pair.workers] == [0, 0]
    first, second = (SECONDS / len(worker.session.tokens_at) for worker in pair.workers)
    spread_share = 1 - (2 if both else 1) / PART
    first_share = 1 - 1 / (2 * PART) if both else 1.0
    possible_s = 1 / (spread_share / SPREAD_S + (first_share - spread_share) / LOCAL_S)
    assert first < 1.12 * possible_s, "as if steps were spread whenever no prompts are computed"
    assert second < 1.25 * SPREAD_S * PART / (PART - 1)
