"""The sampler's pace and its end."""

import threading
from itertools import count

import pytest

from bench.harness.gpu.sampler import Sampler
from telemetry.gpu_readings import GpuInfo, NoGpus, Reading, Xid


class Scripted:
    """Two GPUs; tells when it has been read a number of times. ``stuck``: never answers."""

    infos = tuple(GpuInfo(i, f"GPU-{i}", "x", "1", 1) for i in range(2))
    notes: tuple[str, ...] = ("power: Not Supported",)

    def __init__(self, *, enough: int = 3, stuck: threading.Event | None = None) -> None:
        self.enough = threading.Event()
        self.closed = False
        self._left = 2 * enough
        self._stuck = stuck

    def read(self, gpu: int, at_s: float) -> Reading:
        if self._stuck is not None:
            self.enough.set()
            self._stuck.wait(30.0)
        self._left -= 1
        if self._left <= 0:
            self.enough.set()
        return Reading(at_s, temperature_c=float(gpu))

    def xids(self, at_s: float) -> list[Xid]:
        return [Xid(at_s, 0, 13)]

    def close(self) -> None:
        self.closed = True


def test_every_gpu_is_read_at_each_moment() -> None:
    gpus = Scripted()
    ticks = count()
    with Sampler(gpus, period_s=0.001, clock=lambda: next(ticks) * 1e-6) as sampler:
        assert gpus.enough.wait(10.0)
    assert gpus.closed
    first, second = sampler.readings
    assert len(first) == len(second) == len(sampler.xids) >= 3
    assert [r.at_s for r in first] == [r.at_s for r in second] == sorted(r.at_s for r in first)
    assert {r.temperature_c for r in second} == {1.0}


def test_a_driver_that_hangs_does_not_keep_the_report() -> None:
    release = threading.Event()
    gpus = Scripted(stuck=release)
    with Sampler(gpus, period_s=0.001) as sampler:
        assert gpus.enough.wait(10.0)
    assert sampler.notes[-1] == "the driver stopped answering: readings end early"
    release.set()


def test_without_a_gpu_there_is_nothing_but_the_reason() -> None:
    with Sampler(NoGpus("NVML lists none")) as sampler:
        pass
    assert (sampler.readings, sampler.notes) == ((), ("no GPU: NVML lists none",))


def test_a_period_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match="period_s"):
        Sampler(NoGpus("none"), period_s=0.0)
