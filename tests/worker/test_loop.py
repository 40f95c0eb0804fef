"""The worker's loop around a pool and a GPU, against a real coordinator's hub."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from coordinator.core.hub import HubSettings
from tests.coordinator.core.test_hub import DEADLINE_S, EXPORT, Site
from tests.e2e.waiting import eventually
from transport.wire.channel import WorkerChannel
from transport.wire.errors import ExportLost
from transport.wire.messages import Hello
from transport.wire.reports import GpuHealth, WorkerGauges, XidCount
from transport.wire.session import Session
from worker.loop import WorkerLoop
from worker.stall import StallGuard


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.close()


class Gpu:
    """A watch that says what a test tells it to say."""

    def __init__(self) -> None:
        self.problem = ""

    def health(self) -> GpuHealth:
        xids = (XidCount(48, 1),) if self.problem else ()
        return GpuHealth(temperature_c=61.0, xids=xids)

    def unfit(self) -> str:
        return self.problem

    def final_check(self) -> str:
        return self.problem

    def close(self) -> None:
        pass


class Running:
    """The loop of a colocated worker in a thread, without work."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        handlers = {}
        monkeypatch.setattr(signal, "signal", handlers.__setitem__)
        self._handlers = handlers
        self.gpu = Gpu()
        self.channel = WorkerChannel(site.channel.endpoint, "colocated-1")
        hello = Hello("colocated-1", "colocated", "m", "cuda", 1, 128, 8, EXPORT, gpu="GPU-7")
        self.pool = Mock(ready=True, empty=True, held=lambda: (), wait_s=lambda: 0.05)
        self.pool.gauges = lambda: WorkerGauges(8, 8)
        self.session = Session(self.channel, hello, time.monotonic)
        self.failure: BaseException | None = None
        self.memory_problem = ""
        self.pool.round = self._round
        self._loop = WorkerLoop(
            self.session, self.pool, self.gpu, StallGuard(0.0), Mock(), drain_timeout_s=1.0,
            memory_lost=lambda: self.memory_problem,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _round(self, max_wait_s: float) -> None:
        self.session.receive(min(max_wait_s, self.pool.wait_s()))
        self.pool.step()

    def _run(self) -> None:
        try:
            self._loop.run()
        except (RuntimeError, ExportLost) as failure:
            self.failure = failure

    def signal(self) -> None:
        self._handlers[signal.SIGTERM](signal.SIGTERM, None)

    def stop(self) -> None:
        self.signal()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        self.channel.close()


async def until(site: Site, wanted) -> None:
    async def check() -> None:
        assert wanted(site.hub.status()), site.hub.status()

    await eventually(check, "what the worker told", DEADLINE_S)


async def test_a_gpus_health_reaches_metrics_and_a_critical_xid_drains_the_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(site, monkeypatch)
    try:
        await until(site, lambda s: s.workers and s.workers[0].gpu_temperature_c == 61.0)
        labels = 'gpu="GPU-7",instance="colocated-1",role="colocated"'
        assert f"baton_gpu_temperature_celsius{{{labels}}} 61.0" in site.text
        assert "baton_gpu_power_watts{" not in site.text, "nobody has measured it"
        assert site.hub.status().problems == ()

        running.gpu.problem = "Xid 48: an uncorrected memory error"
        await until(site, lambda s: s.workers[0].draining)
        assert site.hub.status().problems == ("no live colocated worker",)
        assert caplog.text.count("draining, no new work: Xid 48") == 1
        await until(
            site,
            lambda _: 'worker_draining{instance="colocated-1",role="colocated"} 1' in site.text,
        )
        assert f'baton_gpu_xid_events_total{{{labels},xid="48"}} 1.0' in site.text
        assert running.thread.is_alive(), "it keeps its GPU from others until it is told to end"
        assert f"colocated-1 is draining: GPU GPU-7 is unfit: {running.gpu.problem}" in caplog.text
    finally:
        await asyncio.to_thread(running.stop)
    await until(site, lambda s: not s.workers)
    assert "baton_gpu_temperature_celsius{" not in site.text


async def test_a_coordinator_that_forgot_is_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(site, monkeypatch)
    try:
        running.gpu.problem = "Xid 46: the GPU stopped processing"
        await until(site, lambda s: s.workers and s.workers[0].draining)
        site.hub._registry.remove("colocated-1")  # as one that has started anew
        await until(site, lambda s: s.workers and s.workers[0].draining)
    finally:
        await asyncio.to_thread(running.stop)


@pytest.mark.parametrize("problem", ["Xid 48: an uncorrected memory error", ""])
async def test_a_worker_that_fails_says_so_if_it_was_for_its_gpu(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    running = Running(site, monkeypatch)
    try:
        await until(site, lambda s: s.workers)
        monkeypatch.setattr(running.gpu, "final_check", lambda: problem)  # not read until now
        running.pool.step.side_effect = RuntimeError("uncorrectable ECC error encountered")
        await asyncio.to_thread(running.thread.join, DEADLINE_S)
        assert str(running.failure) == "uncorrectable ECC error encountered"
    finally:
        await asyncio.to_thread(running.stop)
    await until(site, lambda s: not s.workers)
    assert ("is draining: GPU GPU-7 is unfit: Xid 48" in caplog.text) == bool(problem)
    assert 'baton_workers_lost_total{reason="silent",role="colocated"} 1.0' in site.text


async def without_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> Running:
    """A worker that waits for work when its coordinator ends."""
    monkeypatch.setattr("worker.loop.IDLE_S", 12 * DEADLINE_S)
    slow = HubSettings(heartbeat_s=12 * DEADLINE_S, dead_after_s=24 * DEADLINE_S)
    site = Site(slow)
    running = Running(site, monkeypatch)
    await until(site, lambda s: s.workers)
    await site.close()
    return running


async def test_told_to_stop_without_work_it_does_not_wait_for_a_coordinator_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = await without_a_coordinator(monkeypatch)
    waits = threading.Event()

    def long() -> float:
        waits.set()
        return 12 * DEADLINE_S

    running.pool.wait_s = long
    assert await asyncio.to_thread(waits.wait, DEADLINE_S)
    await asyncio.to_thread(running.stop)


async def test_told_to_stop_with_work_it_goes_on_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = await without_a_coordinator(monkeypatch)
    running.pool.empty = False
    stopping, began = running.pool.step.call_count, time.monotonic()
    await asyncio.to_thread(running.stop)
    assert time.monotonic() - began >= 1.0, "the drain's time"
    assert running.pool.step.call_count - stopping < 40, "it waits 0.05 s between its rounds"
    running.pool.fail_all.assert_called_once()


async def test_a_worker_whose_memory_is_gone_drains_and_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.loop._LOOK_AT_MEMORY_S", 0.01)
    running = Running(site, monkeypatch)
    running.pool.empty = False
    try:
        await until(site, lambda s: s.workers)
        running.memory_problem = "the segment is gone"
        await until(site, lambda s: s.workers[0].draining)
        running.pool.empty = True
        await until(site, lambda s: not s.workers)
        await asyncio.to_thread(running.thread.join, DEADLINE_S)
        assert isinstance(running.failure, ExportLost)
        assert str(running.failure) == "the segment is gone"
    finally:
        running.stop()
