"""A hub over real sockets, and workers that the test plays."""

import asyncio
import time
from tempfile import TemporaryDirectory
from unittest.mock import Mock

from coordinator.core.hub import Hub, HubSettings
from coordinator.core.observer import Observer
from coordinator.core.settings import PlacementLimits
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Decode, Generate, Hello, Prefill
from transport.wire.reports import WorkerGauges
from transport.wire.session import Session

LAYOUT = CacheLayout("float32", 16, *[1] * 9)


EXPORT = MemoryExport("shm", "h", 1, LAYOUT, PoolSize(8, 8))


FAST = HubSettings(heartbeat_s=0.05, dead_after_s=5.0)


DEADLINE_S = 5.0


class Worker:
    """A worker's session, played by the test."""

    def __init__(self, endpoint: str, instance: str, role: str) -> None:
        self.channel = WorkerChannel(endpoint, instance)
        hello = Hello(instance, role, "m", "cpu", 1, 128, 8, EXPORT)
        self.session = Session(self.channel, hello, time.monotonic)
        self.unheard: list[object] = []
        self.held: set[tuple[str, int]] = set()

    def hear(self, kind: type) -> object:
        """Go on until a message of ``kind`` comes; those behind it wait for the next call."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            while self.unheard:
                message = self.unheard.pop(0)
                if isinstance(message, Prefill | Decode | Generate):
                    self.held.add((message.request_id, message.attempt))
                if isinstance(message, kind):
                    return message
            self.unheard += self.session.receive(0.05)
            self.session.beat(lambda: WorkerGauges(8, 8), lambda: tuple(self.held))
        raise AssertionError(f"no {kind.__name__} within {DEADLINE_S} s")


class Site:
    def __init__(self, settings: HubSettings = FAST) -> None:
        # Not "ipc://*": its file would be in the working directory, which another test may build
        # an image from.
        self._folder = TemporaryDirectory()
        self.channel = CoordinatorChannel(f"ipc://{self._folder.name}/coordinator.sock")
        self.metrics = Metrics("m")
        self.records = Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage())
        self.observer = Observer(self.metrics, self.records, "c1")
        self.hub = Hub(self.channel, self.observer, "c1", settings, PlacementLimits())
        self.task = asyncio.create_task(self.hub.run())
        self.workers: list[Worker] = []

    @property
    def text(self) -> str:
        """What a scrape would read."""
        return self.metrics.render().decode()

    def join(self, instance: str, role: str) -> Worker:
        self.workers.append(Worker(self.channel.endpoint, instance, role))
        return self.workers[-1]

    async def close(self) -> None:
        self.hub.stop()
        await self.task
        for worker in self.workers:
            worker.channel.close()
        self.channel.close()
        self._folder.cleanup()
