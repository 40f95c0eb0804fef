"""Which workers may join, which are fenced, and which must go: silent, dead or useless ones.

An instance that was once taken for dead stays fenced: its requests were retried elsewhere, so what
it sends later is dropped, and it must come back as a new instance.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf

from coordinator.core.settings import HubSettings
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Departure, Worker
from transport.wire.errors import LayoutMismatch, RoleMismatch, WireError
from transport.wire.messages import Alive, Hello, Refused, Role, ToWorker, Welcome
from transport.wire.session import HELLO_EVERY_S

log = logging.getLogger(__name__)

MAX_FENCED = 1_024
REJECTION_LOGGED_EVERY_S = 1.0
NO_COORDINATOR = ""
"""An Alive from another coordinator makes a worker send Hello."""
ANSWERED_S = 2 * HELLO_EVERY_S
"""A welcome that no message has followed by then was lost."""


class Membership:
    """Admits workers to the registry, and decides when they leave. ``lost`` is called for each one
    that leaves; it removes the worker (``Lifecycle.worker_lost``). ``returned`` is called when a
    fenced one is heard again: it had not died. ``send`` gives a worker a message."""

    def __init__(
        self,
        registry: Registry,
        lost: Callable[[str, Departure], object],
        returned: Callable[[str], object],
        send: Callable[[str, ToWorker], object],
        settings: HubSettings,
    ) -> None:
        self._registry = registry
        self._lost = lost
        self._returned = returned
        self._send = send
        self._settings = settings
        self._fenced: OrderedDict[str, str] = OrderedDict()
        self._rejection_logged_at = -inf
        self._num_not_logged = 0

    def admit(self, hello: Hello, welcome: Welcome) -> Welcome | Refused:
        """The answer to a Hello. A known worker that sends it again starts afresh.

        A worker repeats its Hello until it is answered. Of those that queued while this process did
        not listen, only the first one counts. One that arrives much later means that the answer was
        lost, and all that was sent after it.
        """
        if hello.instance in self._fenced:
            return self._refuse_fenced(hello.instance)
        known = self._registry.get(hello.instance)
        now = time.monotonic()
        if known is not None and not known.settled and now < known.heard_at + ANSWERED_S:
            return welcome
        if known is not None:
            self._lost(known.instance, "rejoined")
        try:
            self._registry.require_compatible(hello)
        except (LayoutMismatch, RoleMismatch) as error:
            log.warning("refused %s: %s", hello.instance, error)
            return Refused(str(error))
        self._registry.add(hello, now)
        log.info("%s joined on %s", hello.instance, hello.device)
        return welcome

    def answer_unknown(self, instance: str) -> Alive | Refused:
        """The answer to a message of an unknown worker: make it send Hello again, or end it if it
        is fenced."""
        if instance in self._fenced:
            return self._refuse_fenced(instance)
        return Alive(NO_COORDINATOR)

    def reject(self, instance: str, error: WireError) -> Refused:
        """The answer to a message that cannot be decoded or is not allowed. At most one per
        ``REJECTION_LOGGED_EVERY_S`` is logged."""
        now = time.monotonic()
        if now - self._rejection_logged_at >= REJECTION_LOGGED_EVERY_S:
            log.warning(
                "refused %s: %s", instance, error, extra={"not_logged": self._num_not_logged}
            )
            self._rejection_logged_at, self._num_not_logged = now, 0
        else:
            self._num_not_logged += 1
        return Refused(str(error))

    def handle_goodbye(self, worker: Worker) -> None:
        """Remove a worker that has said goodbye."""
        log.info("%s left", worker.instance)
        self._lost(worker.instance, "goodbye")

    def check(self, lag_s: float, gone: set[str]) -> None:
        """Once per heartbeat, which came ``lag_s`` late: remove workers that are silent, whose
        process is ``gone``, or that are useless."""
        if lag_s > self._settings.heartbeat_s:
            log.warning("the event loop stood still for %.1f s", lag_s)
            self._registry.excuse(lag_s)
        now = time.monotonic()
        for worker in self._registry.silent(now, self._settings.dead_after_s):
            self.fence(worker, f"silent for {now - worker.heard_at:.1f} s")
        self.fence_gone(gone)
        settled = time.monotonic() - 3 * self._settings.heartbeat_s
        for instance, refused in [*self.refuse_stranded(settled), *self.refuse_hopeless()]:
            self._send(instance, refused)

    def fence_gone(self, gone: set[str]) -> None:
        """Remove the workers whose processes were found dead by their connections."""
        for worker in self._registry.all():
            if worker.instance in gone:
                self.fence(worker, "its connection is closed")

    def fence(self, worker: Worker, reason: str, departure: Departure = "silent") -> None:
        """Remove a worker, dead or not: its requests go elsewhere and it may not come back."""
        log.warning("fenced %s: %s", worker.instance, reason)
        self._fenced[worker.instance] = reason
        while len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)
        self._lost(worker.instance, departure)

    def _refuse_fenced(self, instance: str) -> Refused:
        self._returned(instance)
        return Refused(f"fenced: {self._fenced[instance]}")

    def refuse_stranded(self, reported_before: float) -> list[tuple[str, Refused]]:
        """Fence workers whose pair with every partner is broken, so that the operator learns why.

        If both workers of a pair are stranded, the decode worker is fenced, unless its partner is
        draining: the partner's memory may be gone, and its successor will have its own. A draining
        worker finishes what it has.
        """
        refused = []
        sides: tuple[tuple[Role, Role], ...] = (("decode", "prefill"), ("prefill", "decode"))
        for role, partner in sides:
            for worker in self._registry.taking(role):
                broken = self._registry.pairs.broken_of(worker.instance)
                heard = {
                    other.instance: other.heard_at
                    for other in self._registry.of(partner)
                    if not (other.draining and other.instance in broken)
                }
                problem = self._registry.pairs.stranded(worker.instance, heard, reported_before)
                if problem:
                    self.fence(worker, problem, "refused")
                    refused.append((worker.instance, Refused(problem)))
        return refused

    def refuse_hopeless(self) -> list[tuple[str, Refused]]:
        """Fence workers that fail request after request: each ends, and a new one takes its
        place."""
        refused = []
        for worker, problem in self._registry.hopeless():
            self.fence(worker, problem, "refused")
            refused.append((worker.instance, Refused(problem)))
        return refused
