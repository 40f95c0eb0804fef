"""A batch that cannot be computed is noticed before it is launched."""

import pytest

from engine.batch import ForwardBatch, Row
from engine.checks import Checks
from transport.wire.layout import CacheLayout, PoolSize

LAYOUT = CacheLayout("bfloat16", 64, 1, 1, 16, 1, 4, 3, 1, 4, 4)


def step(*block_table: int) -> ForwardBatch:
    return ForwardBatch((Row(1, block_table, 64 * len(block_table) - 1, None),))


def test_pages_of_a_growing_block_table_are_looked_at_once() -> None:
    checks = Checks(LAYOUT, PoolSize(num_pages=10, num_state_slots=2), 1024)
    checks.check(step(4, 9))
    checks.check(step(4, 9, 0))
    for bad in (10, -1):
        with pytest.raises(AssertionError, match=r"state slot 1, tokens 255 to 256: page ids"):
            checks.check(step(4, 9, 0, bad))
        checks.forget(1)
        with pytest.raises(AssertionError, match="page ids"):
            checks.check(step(bad, 9))
        checks.forget(1)


def test_prompts_have_their_pages_looked_at_whole() -> None:
    checks = Checks(LAYOUT, PoolSize(num_pages=10, num_state_slots=2), 1024)
    checks.check(step(4, 9))
    with pytest.raises(AssertionError, match="page ids"):
        checks.check(ForwardBatch((Row(1, (4, 10), 0, (7,) * 100),)))
