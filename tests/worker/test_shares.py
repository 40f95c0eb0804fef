"""The steps' share of the multiprocessors, by what steps and prompts took."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.wire.messages import Targets
from worker.shares import Shares

TOTAL, SHARES = 132, (40, 64, 80)
TIMES_S = st.floats(1e-4, 10.0)


def shares(*, step_ms: float = 11.3, prompt_ms: float = 191.0, tokens_each: float = 1.0) -> Shares:
    """After a step and a batch of 8,000 tokens that took so long on the whole GPU; by default those
    of 32 deep sequences in FP8 on an H200. With the shares such a step takes 29, 19 and 16 ms."""
    found = Shares(SimpleNamespace(total=TOTAL, shares=SHARES))
    found.record_step(step_ms / 1e3, TOTAL, tokens_each)
    found.record_prompts(prompt_ms / 1e3, TOTAL, 8_000)
    return found


def chosen(
    of: Shares,
    *,
    tpot_ms: float = 50.0,
    ttft_ms: float = 2000.0,
    waiting: tuple[tuple[float, int], ...] = ((0.0, 8_000),),
    num_ahead: int = 0,
    num_between: int = 8_000,
) -> int:
    targets = Targets(ttft_ms / 1e3, tpot_ms / 1e3)
    return of.choose(waiting, targets, num_ahead=num_ahead, num_between=num_between)


def test_the_smallest_that_keeps_the_target_of_steps() -> None:
    found = [chosen(shares(), tpot_ms=tpot_ms) for tpot_ms in (50.0, 25.0, 18.0, 1.0)]
    assert found == [40, 64, 80, 80]


def test_prompts_get_more_if_they_would_be_late() -> None:
    found = [
        chosen(shares(), tpot_ms=18.0, waiting=((waited_s, 8_000), (0.0, 8_000)))
        for waited_s in (0.1, 1.8, 3.0)
    ]
    assert found == [80, 64, 40]
    assert chosen(shares(), tpot_ms=18.0, waiting=((1.4, 8_000),), num_ahead=8_000) == 64


def test_prompts_that_are_late_anyway_get_the_whole_gpu_between_steps() -> None:
    queue = tuple((0.0, 8_000) for _ in range(30))
    assert chosen(shares(), waiting=queue[:20]) == 40
    assert chosen(shares(), waiting=queue) == 0, "204 instead of 29 ms a token, as late as that"
    assert chosen(shares(tokens_each=3.3), waiting=queue[:12]) == 0
    assert chosen(shares(), waiting=queue[:20], num_between=2_000) == 0, "59 ms a token"


def test_a_step_may_take_longer_if_it_gives_several_tokens() -> None:
    assert chosen(shares(), tpot_ms=18.0) == 80
    assert chosen(shares(tokens_each=2.0), tpot_ms=18.0) == 40


def test_times_with_another_share_are_converted() -> None:
    of = shares()
    of.record_step(0.029, 40, 1.0)
    of.record_prompts(0.274, TOTAL - 40, 8_000)
    assert of.step_s == 0.029
    for tpot_ms in (100.0, 50.0, 25.0, 18.0, 5.0):
        assert chosen(of, tpot_ms=tpot_ms) == chosen(shares(), tpot_ms=tpot_ms)


def test_before_a_long_prompt_was_measured_it_is_computed_beside_steps() -> None:
    of = Shares(SimpleNamespace(total=TOTAL, shares=SHARES))
    of.record_step(0.0113, TOTAL, 1.0)
    of.record_prompts(0.03, TOTAL, 100)
    assert chosen(of, waiting=((9.0, 8_000),), tpot_ms=0.1) == 80
    assert chosen(of) == 40


@given(
    step_s=TIMES_S, prompt_s=TIMES_S, on=st.sampled_from((*SHARES, TOTAL)), ttft_s=TIMES_S,
    tpot_s=TIMES_S, waiting=st.lists(st.tuples(TIMES_S, st.integers(0, 99_999)), max_size=4),
)  # fmt: skip
def test_a_looser_target_never_takes_more_for_steps(
    step_s: float, prompt_s: float, on: int, ttft_s: float, tpot_s: float,
    waiting: list[tuple[float, int]],
) -> None:  # fmt: skip
    of = shares()
    of.record_step(step_s, on, 1.0)
    of.record_prompts(prompt_s, TOTAL - 40, 8_000)
    tight, loose = (
        of.choose(waiting, Targets(ttft_s, factor * tpot_s), num_ahead=0, num_between=2_048)
        for factor in (1, 2)
    )
    assert 0 in (tight, loose) or loose <= tight


@pytest.mark.parametrize("gpu", [None, SimpleNamespace(total=1, shares=())])
def test_a_gpu_that_is_not_divided_has_none(gpu: SimpleNamespace | None) -> None:
    Shares(gpu).record_step(0.1, 1, 1.0)
