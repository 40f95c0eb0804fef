"""What the policy of the pools decides, from loads alone."""

from dataclasses import replace

import pytest

from coordinator.core.pool_forecast import PoolLoad
from coordinator.core.pool_policy import BACK_S, HOLD_S, LOOK_S, MEMORY_S, PoolPolicy
from coordinator.core.pool_targets import PoolTargets
from tests.coordinator.speeds import FixedSpeeds

TARGETS = PoolTargets(ttft_s=1.0, tpot_s=0.02)


def policy(tok_s: float = 10_000.0) -> PoolPolicy:
    return PoolPolicy(TARGETS, FixedSpeeds(tok_s))


def load(
    prefill: int, decode: int, waiting: int = 0, arrived: int = 0, sequences: int = 0
) -> PoolLoad:
    return PoolLoad(prefill, decode, waiting, arrived, sequences)


def test_prompts_that_wait_get_another_worker() -> None:
    found = policy()
    assert found.decide(load(1, 3, waiting=30_000, sequences=30), 0.0) == 2
    assert "1 → 2 prefill: 30000 tokens wait, predicted TTFT 3.0" in found.why


def test_a_load_of_patient_requests_changes_nothing() -> None:
    patient = PoolTargets(ttft_s=60.0, tpot_s=0.5)
    found, waiting = policy(), load(1, 3, waiting=30_000, sequences=30)
    assert found.decide(replace(waiting, targets=patient), 0.0) == 1
    assert found.decide(waiting, 10.0) == 2


def test_slow_steps_get_another_worker() -> None:
    assert policy().decide(load(3, 1, sequences=200), 0.0) == 2


def test_an_easy_load_changes_nothing() -> None:
    assert policy().decide(load(2, 2, waiting=100), 0.0) == 2


def test_no_change_undoes_another_one_at_once() -> None:
    found = policy()
    assert found.decide(load(1, 3, waiting=30_000), 10.0) == 2
    assert found.decide(load(2, 2, sequences=400), 10.0 + HOLD_S) == 2
    assert found.decide(load(2, 2, sequences=400), 10.0 + BACK_S) == 1


def test_a_change_that_goes_on_waits_for_less_time_than_one_back() -> None:
    found = policy()
    assert found.decide(load(1, 3, waiting=30_000), 10.0) == 2
    assert found.decide(load(2, 2, waiting=50_000), 10.0 + HOLD_S / 2) == 2
    assert found.decide(load(2, 2, waiting=50_000), 10.0 + HOLD_S) == 3


def test_a_worker_always_decodes() -> None:
    found = policy()
    for now in range(0, 20, 2):
        assert found.decide(load(3, 1, waiting=10**6), float(now)) <= 3
        assert found.decide(load(1, 3, sequences=10**4), now + 1.0) >= 0


@pytest.mark.parametrize(("tpot_s", "wanted"), [(0.05, 0), (0.02, 1)])
def test_all_do_both_where_the_mean_time_a_token_is_far_below_its_target(
    tpot_s: float, wanted: int
) -> None:
    found = PoolPolicy(PoolTargets(1.0, tpot_s), FixedSpeeds(10_000.0, each_s=0.0))
    assert found.decide(load(1, 1, waiting=15_000, sequences=32), 0.0) == wanted
    if not wanted:
        assert "1 → 0 prefill: 15000 tokens wait" in found.why
        assert found.decide(load(0, 2, waiting=15_000, sequences=32), HOLD_S) == 0


def test_pools_form_again_at_once_when_prompts_would_make_a_token_late() -> None:
    found = PoolPolicy(PoolTargets(10.0, 0.05), FixedSpeeds(10_000.0, each_s=0.0))
    assert found.decide(load(0, 8, waiting=200_000, sequences=32), 0.0) in range(3, 8)


def test_arrivals_beyond_the_speed_count_before_they_wait() -> None:
    found = policy()
    for now in range(12):
        wanted = found.decide(load(1, 3, waiting=3_000, arrived=20_000, sequences=30), float(now))
    assert wanted == 2


def test_an_easy_time_makes_ready_for_the_worst_one() -> None:
    found = policy()
    burst = load(1, 3, waiting=30_000, sequences=30)
    assert found.decide(burst, 0.0) == 2
    assert found.decide(load(2, 2), 10.0) == 3
    assert "2 → 3 prefill: ready for the worst load of the last minutes, which took" in found.why
    assert found.decide(load(3, 1), 20.0) == 3
    assert found.decide(load(2, 2), 20.0 + 5 * MEMORY_S) == 2, "it is forgotten"


@pytest.mark.parametrize(("tpot_s", "wanted"), [(0.05, 0), (0.03, 1)])
def test_where_a_size_is_fine_one_with_shorter_steps_is_taken(tpot_s: float, wanted: int) -> None:
    found = PoolPolicy(PoolTargets(1.0, tpot_s), FixedSpeeds(each_s=0.000_5))
    assert found.decide(load(2, 2, waiting=2_000, sequences=60), 0.0) == wanted
    assert found.why == f"2 → {wanted} prefill: shorter steps than 25.0 ms"


@pytest.mark.parametrize(("each_s", "wanted"), [(0.000_2, 0), (0.000_1, 1)])
def test_steps_that_are_a_little_shorter_are_worth_a_change(each_s: float, wanted: int) -> None:
    """With 16 and 12 sequences a step takes 13.2 and 12.4 ms, or 11.6 and 11.2."""
    found = PoolPolicy(PoolTargets(1.0, 0.05), FixedSpeeds(each_s=each_s))
    assert found.decide(load(1, 3, sequences=48), 0.0) == wanted


def test_steps_are_compared_by_some_seconds_and_not_by_a_burst() -> None:
    found = PoolPolicy(PoolTargets(1.0, 0.05), FixedSpeeds(each_s=0.000_2))
    burst = load(1, 3, waiting=7_000, sequences=48)
    assert found.decide(burst, 0.0) == 1, "prompts beside steps would make them longer"
    then = [found.decide(load(1, 3, sequences=48), n * LOOK_S) for n in range(1, 41)]
    assert 3 < then.index(0) < 40


def test_sizes_are_those_of_the_workers_that_are_left() -> None:
    found = PoolPolicy(PoolTargets(1.0, 0.05), FixedSpeeds(each_s=0.000_2))
    loads = (load(1, 3, sequences=48), load(1, 2, sequences=48), load(1, 4, sequences=48))
    assert [found.decide(each, 10.0 * n) for n, each in enumerate(loads)] == [0, 0, 0]


def test_a_size_that_was_too_small_for_the_worst_load_is_not_taken_for_its_steps() -> None:
    found = PoolPolicy(PoolTargets(1.0, 0.03), FixedSpeeds(each_s=0.000_5))
    assert found.decide(load(2, 2, waiting=15_000, sequences=60), 0.0) == 2
    assert found.decide(load(2, 2, waiting=2_000, sequences=60), 10.0) == 2
    assert found.decide(load(2, 2, waiting=2_000, sequences=60), 10.0 + 5 * MEMORY_S) == 1


def test_nothing_to_do_changes_nothing() -> None:
    found = policy()
    assert found.decide(load(3, 1, sequences=100), 0.0) == 2
    assert found.decide(load(2, 2), 1000.0) == 2


def test_a_small_gain_is_not_worth_a_change() -> None:
    assert policy().decide(load(2, 2, waiting=12_000, sequences=94), 0.0) == 2


def test_without_a_known_speed_nothing_changes() -> None:
    assert policy(tok_s=0.0).decide(load(1, 3, waiting=10**6), 0.0) == 1


def test_under_a_load_that_no_size_serves_in_time_all_do_both_until_it_is_down() -> None:
    found = policy()
    assert found.decide(load(1, 3, waiting=70_000, sequences=30), 10.0) == 0
    assert found.why == (
        "1 → 0 prefill: 70000 tokens wait, predicted TTFT 7.03 s of 1, TPOT 11.0 ms of 20"
    )
    assert found.decide(load(0, 4, waiting=40_000, sequences=60), 20.0) == 0
    assert found.decide(load(0, 4, waiting=20_000, sequences=60), 30.0) > 0


def test_the_pools_are_not_ready_for_a_load_that_no_size_serves_in_time() -> None:
    steps, quiet = [], load(3, 1, waiting=1_000, sequences=60)
    for waiting in (40_000, 80_000):  # at best 1.3 and 2.7 times the target
        found = policy()
        found.decide(load(3, 1, waiting=waiting, sequences=30), 10.0)
        steps.append(found.decide(quiet, 20.0))
    assert steps == [3, 2]
    assert found.why == "3 → 2 prefill: shorter steps than 15.2 ms"


@pytest.mark.parametrize("bad", [{"ttft_s": 0.0}, {"tpot_s": float("nan")}])
def test_targets_are_times(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is not a time above 0"):
        PoolTargets(**bad)


@pytest.mark.parametrize(("prompt_len", "wanted"), [(100, 0), (20_000, 1)])
def test_a_pair_does_both_while_a_prompt_costs_short_answers_little(
    prompt_len: float, wanted: int
) -> None:
    found = PoolPolicy(TARGETS, FixedSpeeds(100_000.0, each_s=0.000_2, prompt_len=prompt_len))
    pair = PoolLoad(1, 1, 1_000, 2_000, 40, in_pair=True)
    assert found.decide(pair, 0.0) == wanted
    apart = PoolPolicy(TARGETS, FixedSpeeds(100_000.0, each_s=0.000_2, prompt_len=prompt_len))
    assert apart.decide(replace(pair, in_pair=False), 0.0) == 1


def test_a_pair_whose_prompts_are_few_does_both_for_shorter_steps() -> None:
    found = PoolPolicy(TARGETS, FixedSpeeds(100_000.0, each_s=0.000_2))
    few = PoolLoad(1, 1, 0, 0, 8, in_pair=True)
    assert found.decide(few, 0.0) == 0
    assert found.why == "1 → 0 prefill: shorter steps than 11.6 ms"
    assert found.decide(replace(few, num_prefill=0, num_decode=2), 10.0) == 0


def test_a_pair_does_not_do_both_between_two_bursts_of_prompts() -> None:
    found = PoolPolicy(PoolTargets(5.0, 0.02), FixedSpeeds(100_000.0, each_s=0.000_2))
    quiet = PoolLoad(1, 1, 0, 0, 8, in_pair=True)
    burst = replace(quiet, tokens_waiting=20_000, tokens_arrived=24_000)
    busy = [found.decide(burst, n * LOOK_S) for n in range(80)]
    assert busy[40:] == [1] * 40
    then = [found.decide(quiet, (80 + n) * LOOK_S) for n in range(120)]
    assert then.index(0) > 20, "a quiet moment says little"


@pytest.mark.parametrize(("prompt_len", "wanted"), [(1_000.0, 0), (5_000.0, 1)])
def test_long_prompts_make_the_common_steps_of_a_pair_local_ones(
    prompt_len: float, wanted: int
) -> None:
    targets = PoolTargets(2.0, 0.014_5)
    found = PoolPolicy(targets, FixedSpeeds(100_000.0, each_s=0.0, prompt_len=prompt_len))
    pair = PoolLoad(0, 2, 0, 10_000, 120, in_pair=True)
    assert [found.decide(pair, n * LOOK_S) for n in range(40)][-1] == wanted
