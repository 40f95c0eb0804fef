"""What each heartbeat finds: workers that are dead or of no use, requests that take too long."""

import logging
import time
from collections.abc import Callable

from coordinator.hub_settings import HubSettings
from coordinator.lifecycle import Lifecycle
from coordinator.membership import Membership
from coordinator.registry import Registry
from transport.messages import Alive, ToWorker

log = logging.getLogger(__name__)


class Vigil:
    """Watches over workers and requests, ``keep`` by ``keep``. ``send`` says whether a worker was
    reached; ``coordinator`` is our instance."""

    def __init__(
        self,
        registry: Registry,
        lifecycle: Lifecycle,
        membership: Membership,
        send: Callable[[str, ToWorker], bool],
        settings: HubSettings,
        coordinator: str,
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._membership = membership
        self._send = send
        self._settings = settings
        self._coordinator = coordinator

    def keep(self, lag_s: float) -> None:
        """Once a heartbeat, which came ``lag_s`` late."""
        self._fence_the_dead(lag_s)
        self._refuse_the_stranded()
        self._fail_overdue(time.monotonic() - self._settings.request_timeout_s)

    def _fence_the_dead(self, lag_s: float) -> None:
        """Shut out who is silent, and who has been unreachable for two heartbeats: a dead
        process's connection closes at once, a live one has reconnected by then."""
        if lag_s > self._settings.heartbeat_s:
            log.warning("this process stood still for %.1f s", lag_s)
            self._registry.excuse(lag_s)
        now = time.monotonic()
        for worker in self._registry.silent(now, self._settings.dead_after_s):
            self._membership.fence(worker, f"silent for {now - worker.heard_at:.1f} s")
        for worker in self._registry.all():
            reached = self._send(worker.instance, Alive(self._coordinator))
            worker.unreached = 0 if reached else worker.unreached + 1
            if worker.unreached == 2:
                self._membership.fence(worker, "its connection is closed")

    def _refuse_the_stranded(self) -> None:
        settled = time.monotonic() - 3 * self._settings.heartbeat_s
        for instance, refused in self._membership.refuse_stranded(settled):
            self._send(instance, refused)

    def _fail_overdue(self, accepted_before: float) -> None:
        limit_s = self._settings.request_timeout_s
        for request in list(self._lifecycle.requests.values()):
            if request.accepted_at >= accepted_before:
                break  # the rest were accepted later
            self._lifecycle.fail(request, "timeout", f"not done after {limit_s:.0f} s")
