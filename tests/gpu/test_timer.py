"""On a real GPU: a batch takes as long as the device computes it, whenever that begins and whenever
the host looks."""

import time

import pytest
import torch

from engine.timer import Timer

pytestmark = pytest.mark.gpu

CYCLES = 20_000_000
"""Some 10 ms of a GPU."""


def timed() -> Timer:
    timer = Timer(torch.device("cuda"))
    torch.cuda._sleep(CYCLES)
    timer.stop()
    return timer


def test_neither_the_batch_before_nor_a_late_host_counts() -> None:
    timed().wait()
    alone = timed()
    alone.wait()
    before, behind = timed(), timed()
    assert not behind.is_over
    assert behind.took_s is None
    behind.wait()
    time.sleep(0.05)
    assert alone.took_s is not None
    for timer in (before, behind):
        assert timer.is_over
        assert timer.took_s == pytest.approx(alone.took_s, rel=0.2)
