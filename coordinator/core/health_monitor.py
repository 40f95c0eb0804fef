"""What each heartbeat finds: workers that are dead or of no use, requests that take too long."""

import logging
import time
from collections.abc import Callable

from coordinator.core.hub_settings import HubSettings
from coordinator.core.lifecycle import Lifecycle
from coordinator.core.membership import Membership
from coordinator.core.registry import Registry
from transport.wire.messages import ToWorker

log = logging.getLogger(__name__)


class HealthMonitor:
    """Watches over workers and requests, ``keep`` by ``keep``; ``send`` reaches a worker."""

    def __init__(
        self,
        registry: Registry,
        lifecycle: Lifecycle,
        membership: Membership,
        send: Callable[[str, ToWorker], bool],
        settings: HubSettings,
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._membership = membership
        self._send = send
        self._settings = settings

    def keep(self, lag_s: float, gone: set[str]) -> None:
        """Once a heartbeat, which came ``lag_s`` late; ``gone`` are processes found dead."""
        self._fence_the_dead(lag_s, gone)
        self._refuse_the_useless()
        self._lifecycle.tick()

    def fence_gone(self, gone: set[str]) -> None:
        """Processes were found dead by their connections."""
        for worker in self._registry.all():
            if worker.instance in gone:
                self._membership.fence(worker, "its connection is closed")

    def _fence_the_dead(self, lag_s: float, gone: set[str]) -> None:
        if lag_s > self._settings.heartbeat_s:
            log.warning("this process stood still for %.1f s", lag_s)
            self._registry.excuse(lag_s)
        now = time.monotonic()
        for worker in self._registry.silent(now, self._settings.dead_after_s):
            self._membership.fence(worker, f"silent for {now - worker.heard_at:.1f} s")
        self.fence_gone(gone)

    def _refuse_the_useless(self) -> None:
        settled = time.monotonic() - 3 * self._settings.heartbeat_s
        for instance, refused in [
            *self._membership.refuse_stranded(settled),
            *self._membership.refuse_hopeless(),
        ]:
            self._send(instance, refused)
