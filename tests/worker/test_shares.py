"""The steps' share of the multiprocessors, by what steps and prompts took."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.wire.messages import Targets
from worker.shares import Shares

TOTAL, SHARES = 132, (40, 64, 80)
TIMES_S = st.floats(1e-4, 10.0)


def shares(*, step_ms: float = 0.0, prompt_ms: float = 0.0, tokens_each: float = 1.0) -> Shares:
    """After a step and a batch of 8,000 tokens that took so long on the whole GPU."""
    found = Shares(SimpleNamespace(total=TOTAL, shares=SHARES))
    found.record_step(step_ms / 1e3, TOTAL, tokens_each)
    found.record_prompts(prompt_ms / 1e3, TOTAL, 8_000)
    return found


def test_the_smallest_that_keeps_the_target_of_steps() -> None:
    # An H200's step of 32 deep sequences in FP8 takes 29, 19 and 16 ms on the shares.
    given = shares(step_ms=11.3, prompt_ms=191.0)
    chosen = [given.choose(8_000, [], Targets(2.0, ms / 1e3)) for ms in (50.0, 25.0, 18.0, 1.0)]
    assert chosen == [40, 64, 80, 80]


def test_prompts_get_more_if_they_would_be_late() -> None:
    given, targets = shares(step_ms=11.3, prompt_ms=191.0), Targets(2.0, 0.018)
    chosen = [
        given.choose(8_000, [(waited_s, 0), (0.0, 8_000)], targets) for waited_s in (0.1, 1.8, 3.0)
    ]
    assert chosen == [80, 64, 40]


def test_a_step_may_take_longer_if_it_gives_several_tokens() -> None:
    targets = Targets(2.0, 0.018)
    assert shares(step_ms=11.3).choose(8_000, [], targets) == 80
    assert shares(step_ms=11.3, tokens_each=2.0).choose(8_000, [], targets) == 40


def test_times_of_another_share_are_converted() -> None:
    given = shares()
    given.record_step(0.029, 40, 1.0)
    assert given.choose(1, [], Targets(2.0, 0.03)) == 40
    assert given.choose(1, [], Targets(2.0, 0.02)) == 64
    assert given.step_s == 0.029
    given.record_prompts(0.274, TOTAL - 40, 8_000)
    late = [(1.0, 0)]
    assert given.choose(8_000, late, Targets(2.0, 0.02)) == 64
    assert given.choose(8_000, late, Targets(0.9, 0.02)) == 40


def test_with_nothing_measured_prompts_get_the_most() -> None:
    given = Shares(SimpleNamespace(total=TOTAL, shares=SHARES))
    assert given.choose(8_000, [(1.0, 0)], Targets(2.0, 0.05)) == 40


@given(
    step_s=TIMES_S, prompt_s=TIMES_S, on=st.sampled_from((*SHARES, TOTAL)), ttft_s=TIMES_S,
    tpot_s=TIMES_S, waiting=st.lists(st.tuples(TIMES_S, st.integers(0, 99_999)), max_size=4),
)  # fmt: skip
def test_a_looser_tpot_never_takes_more_for_steps(
    step_s: float, prompt_s: float, on: int, ttft_s: float, tpot_s: float,
    waiting: list[tuple[float, int]],
) -> None:  # fmt: skip
    given = shares()
    given.record_step(step_s, on, 1.0)
    given.record_prompts(prompt_s, TOTAL - 40, 8_000)
    looser = given.choose(8_000, waiting, Targets(ttft_s, 2 * tpot_s))
    assert looser <= given.choose(8_000, waiting, Targets(ttft_s, tpot_s))


@pytest.mark.parametrize("gpu", [None, SimpleNamespace(total=1, shares=())])
def test_a_gpu_that_is_not_divided_has_none(gpu: SimpleNamespace | None) -> None:
    Shares(gpu).record_step(0.1, 1, 1.0)
