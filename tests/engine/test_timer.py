"""A batch's time where the device is the host itself."""

import time

import torch

from engine.timer import Timer


def test_a_batch_on_the_cpu_takes_from_its_launch_to_its_end() -> None:
    timer = Timer(torch.device("cpu"))
    time.sleep(0.01)
    timer.stop()
    took_s = timer.took_s
    time.sleep(0.01)
    assert timer.is_over
    assert timer.took_s == took_s
    assert took_s is not None
    assert took_s >= 0.01
