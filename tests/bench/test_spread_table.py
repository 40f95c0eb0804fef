"""The shipped table of spread steps: measured ones, and estimates corrected by them."""

import pytest

from bench.spread_table import corrected
from decode.spread_table import StepTime


def test_estimates_are_corrected_by_what_was_measured() -> None:
    estimates = [
        StepTime(1, 8, 0, 4.0), StepTime(2, 8, 0, 3.0), StepTime(4, 8, 0, 2.0),
        StepTime(4, 8, 1, 2.5), StepTime(4, 16, 0, 3.0), StepTime(2, 16, 0, 4.0),
    ]  # fmt: skip
    measured = [StepTime(1, 8, 0, 5.0), StepTime(2, 8, 0, 3.3), StepTime(2, 16, 0, 4.8)]
    found = {step[:3]: step.ms for step in corrected(estimates, measured)}
    assert found[1, 8, 0] == 5.0
    assert found[2, 16, 0] == 4.8
    assert found[4, 8, 0] == pytest.approx(2.2)
    assert found[4, 16, 0] == pytest.approx(3.6)
    assert found[4, 8, 1] == pytest.approx(2.75), "by steps without drafts"
