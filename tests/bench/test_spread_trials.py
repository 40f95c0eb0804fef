"""What an idle spread group has measured, as the benchmark tells it."""

import pytest

from bench.spread_trials import compared
from decode.spread_table import shipped
from decode.spread_trials import TimedStep


def test_timed_steps_stand_beside_the_shipped_times() -> None:
    steps = [
        TimedStep(1, 16, 0, 16, 1.5 * shipped().local_ms(16, 0)),
        TimedStep(2, 16, 0, 32, 0.5 * shipped().spread_ms(2, 16, 0, 32)),
        TimedStep(2, 16, 4, 160, 9.0),
    ]
    first, second = compared(steps)
    assert first["ratio"] == pytest.approx(1.5, abs=0.001)
    assert (second["sharing"], second["ratio"]) == (2, pytest.approx(0.5, abs=0.001))
