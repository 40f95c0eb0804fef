"""What the leak watch calls growth."""

import pytest

from tests.soak.leaks import growth


def test_growth_compares_the_last_quarter_with_the_first() -> None:
    flat = [{"decode": 100.0 + number % 2} for number in range(40)]
    assert growth(flat, "decode") == pytest.approx(0.0, abs=0.01)
    leaking = [{"decode": 100.0 + number / 4} for number in range(40)]
    assert growth(leaking, "decode") > 0.05
    assert growth([*flat[:39], {"decode": 900.0}], "decode") < 0.02, "a peak is no leak"
