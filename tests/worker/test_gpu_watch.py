"""What a worker learns about its GPU, from a recording of NVML."""

import logging
import threading
import time

import pytest

from telemetry.gpu_readings import Gpus, NoGpus
from telemetry.nvml import NvmlGpus
from tests.telemetry.fake_nvml import FakeNvml
from transport.wire.reports import GpuHealth, XidCount
from worker.gpu_watch import STALE_S, GpuWatch, NoWatch

DEADLINE_S = 10.0


class Rounds:
    """Opens GPUs, counting the watch's looks at them; ``begun`` is set with the second one, when
    what the first one found is there to be told."""

    def __init__(self, library: FakeNvml, uuid: str = "GPU-1") -> None:
        self.gpus = NvmlGpus(library, uuid)
        self.second = threading.Event()
        self.begun = 0
        self._read = self.gpus.read
        self.gpus.read = self._counted  # type: ignore[method-assign]

    def _counted(self, gpu: int, at_s: float):
        self.begun += 1
        if self.begun > 1:
            self.second.set()
        return self._read(gpu, at_s)

    def __call__(self) -> Gpus:
        return self.gpus


def watched(library: FakeNvml, **settings) -> GpuWatch:
    rounds = Rounds(library)
    watch = GpuWatch(rounds, period_s=0.001, **settings)
    assert rounds.second.wait(DEADLINE_S)
    return watch


def test_the_newest_reading_is_told() -> None:
    library = FakeNvml()
    library.events.append((1, 13))
    watch = watched(library)
    assert watch.health() == GpuHealth(
        temperature_c=61,
        slowdown_c=88,
        power_w=pytest.approx(512.345),
        utilisation_pct=97,
        memory_used_bytes=70 << 30,
        memory_bytes=140 << 30,
        sm_clock_mhz=1965,
        ecc_uncorrected=0,
        remap_pending=True,
        remap_failed=False,
        nvlink_errors=7,
        xids=(XidCount(13, 1),),
    )
    assert watch.unfit() == "", "13 may be a program's own fault"
    watch.close()
    assert library.closed


@pytest.mark.parametrize("number", [46, 48])
def test_after_a_critical_xid_the_gpu_is_unfit(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    library = FakeNvml()
    library.events += [(1, number), (1, number)]
    watch = watched(library)
    assert watch.unfit().startswith(f"Xid {number}: ")
    health = watch.health()
    assert health is not None
    assert health.xids == (XidCount(number, 2),)
    assert f"Xid {number}: " in caplog.text
    watch.close()


def test_a_look_that_fails_is_told_once_and_is_not_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    library, seen = FakeNvml(), threading.Event()
    rounds, looks = Rounds(library), 0
    xids = rounds.gpus.xids

    def failing(at_s: float):
        nonlocal looks
        looks += 1
        if looks < 3:
            raise RuntimeError("what a strange driver")
        if looks > 3:
            seen.set()
        return xids(at_s)

    rounds.gpus.xids = failing  # type: ignore[method-assign]
    library.events.append((1, 48))
    watch = GpuWatch(rounds, period_s=0.001)
    assert seen.wait(DEADLINE_S)
    watch.close()
    assert watch.unfit().startswith("Xid 48: ")
    assert caplog.text.count("RuntimeError: what a strange driver") == 1


def test_what_the_gpu_does_not_offer_is_unknown_not_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watch = watched(FakeNvml("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPowerUsage"))
    watch.close()
    health = watch.health()
    assert health is not None
    assert (health.ecc_uncorrected, health.power_w, health.temperature_c) == (None, None, 61)
    assert caplog.text.count("ECC errors: Not Supported") == 1


def test_a_driver_that_hangs_is_noticed_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    watch = watched(FakeNvml(), clock=lambda: now)
    watch.close()
    assert watch.health() is not None
    now = STALE_S + 0.1
    assert watch.health() is None
    assert watch.health() is None
    assert caplog.text.count("has not answered") == 1


def test_opening_may_hang_too() -> None:
    release = threading.Event()

    def hangs() -> Gpus:
        release.wait(DEADLINE_S)
        return NoGpus("late")

    began = time.monotonic()
    watch = GpuWatch(hangs)
    assert (watch.health(), watch.unfit()) == (None, "")
    assert time.monotonic() - began < DEADLINE_S / 2
    release.set()
    watch.close()


def test_without_nvml_it_says_why_once_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    opened = threading.Event()

    def none() -> Gpus:
        opened.set()
        return NoGpus("the package nvidia-ml-py is not installed (extra: gpu)")

    watch = GpuWatch(none, period_s=0.001)
    assert opened.wait(DEADLINE_S)
    watch.close()
    assert (watch.health(), watch.unfit()) == (None, "")
    assert caplog.text.count("nvidia-ml-py is not installed") == 1


def test_a_worker_without_a_gpu_tells_nothing() -> None:
    assert (NoWatch().health(), NoWatch().unfit(), NoWatch().final_check()) == (None, "", "")


def test_a_last_look_sees_what_came_after_the_last_reading() -> None:
    library, first = FakeNvml(), threading.Event()
    rounds = Rounds(library)
    seen = rounds.gpus.xids
    rounds.gpus.xids = lambda at_s: (seen(at_s), first.set())[0]  # type: ignore[method-assign]
    watch = GpuWatch(rounds, period_s=3600.0)
    assert first.wait(DEADLINE_S)
    assert watch.unfit() == ""
    library.events.append((1, 48))
    assert watch.final_check() == "Xid 48: an uncorrected memory error"
    assert watch.unfit() == watch.final_check()
    watch.close()
    assert library.closed


def test_an_unfit_gpu_is_told_again_and_again_also_when_it_cannot_be_read_any_more() -> None:
    library, told, again = FakeNvml(), [], threading.Event()

    def on_unfit(reason: str) -> None:
        told.append(reason)
        rounds.gpus.read = None  # type: ignore[method-assign]
        if len(told) > 3:
            again.set()
        raise OSError(28, "No space left on device")  # which must not end the watch

    rounds = Rounds(library)
    library.events.append((1, 48))
    watch = GpuWatch(rounds, period_s=0.001, on_unfit=on_unfit)
    assert again.wait(DEADLINE_S)
    watch.close()
    assert set(told) == {"Xid 48: an uncorrected memory error"}


def test_a_last_look_does_not_wait_for_a_driver_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.gpu_watch.CLOSE_S", 0.05)
    library, release, first = FakeNvml(), threading.Event(), threading.Event()
    rounds = Rounds(library)
    seen = rounds.gpus.xids

    def xids(at_s: float):
        if first.is_set():
            release.wait(DEADLINE_S)
        first.set()
        return seen(at_s)

    rounds.gpus.xids = xids  # type: ignore[method-assign]
    watch = GpuWatch(rounds, period_s=3600.0)
    assert first.wait(DEADLINE_S)
    began = time.monotonic()
    assert watch.final_check() == ""
    watch.close()
    assert time.monotonic() - began < DEADLINE_S / 2
    assert not library.closed, "it is still in use"
    release.set()
