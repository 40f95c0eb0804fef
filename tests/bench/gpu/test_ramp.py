"""Which concurrency fills the GPUs."""

import pytest

from bench.harness.gpu.report import Step
from bench.harness.gpu.run import best_of


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({1: 100, 2: 190, 4: 300, 8: 310}, 4),  # the last doubling gains under 5 %
        ({1: 100, 2: 190}, 2),
        ({4: 0.0}, 4),
    ],
)
def test_a_doubling_that_gains_too_little_is_not_taken(rates: dict[int, float], best: int) -> None:
    assert best_of([Step(*each) for each in rates.items()], 0.05).concurrency == best
