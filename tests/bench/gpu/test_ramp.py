"""The search for the concurrency that fills the GPUs."""

import pytest

from bench.gpu.ramp import Ramp


def climb(rates: dict[int, float], **settings: float) -> Ramp:
    ramp = Ramp(**settings)  # type: ignore[arg-type]
    while ramp.concurrency is not None:
        ramp.took(rates[ramp.concurrency])
    return ramp


def test_it_doubles_until_a_doubling_gains_too_little() -> None:
    ramp = climb({1: 100, 2: 190, 4: 300, 8: 310, 16: 1000})
    assert [step.concurrency for step in ramp.steps] == [1, 2, 4, 8]
    assert ramp.best.concurrency == 4


def test_it_ends_at_the_most() -> None:
    ramp = climb({1: 1, 2: 2, 3: 3}, most=3)
    assert ramp.best.concurrency == 3


def test_one_rate_is_enough() -> None:
    assert climb({4: 0.0}, start=4, most=4).best.concurrency == 4


@pytest.mark.parametrize("settings", [{"start": 0}, {"start": 9, "most": 8}, {"least_gain": 0.0}])
def test_settings_that_make_no_sense_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Ramp(**settings)  # type: ignore[arg-type]
