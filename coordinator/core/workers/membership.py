"""Which workers may join, and which are fenced.

An instance that was once taken for dead stays fenced: its requests were placed elsewhere, so what
it sends later is dropped, and it must come back as a new instance.
"""

import logging
import time
from collections import OrderedDict
from math import inf

from coordinator.core.observer import Departure, Observer
from coordinator.core.requests.worker_events import WorkerEvents
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.errors import LayoutMismatch, RoleMismatch, WireError
from transport.wire.messages import Alive, Hello, Refused, Role, Welcome
from transport.wire.session import HELLO_EVERY_S

log = logging.getLogger(__name__)

MAX_FENCED = 1_024
DISTRUST_LOGGED_EVERY_S = 1.0
NO_COORDINATOR = ""
"""An Alive from another coordinator makes a worker send Hello."""
ANSWERED_S = 2 * HELLO_EVERY_S
"""A welcome that no message has followed by then did not arrive."""


class Membership:
    """Admits workers to the registry, and removes them from it."""

    def __init__(self, registry: Registry, workers: WorkerEvents, observer: Observer) -> None:
        self._registry = registry
        self._workers = workers
        self._observer = observer
        self._fenced: OrderedDict[str, str] = OrderedDict()
        self._distrust_logged_at = -inf
        self._num_not_logged = 0

    def admit(self, hello: Hello, welcome: Welcome) -> Welcome | Refused:
        """The answer to a Hello. A known worker that sends it again starts afresh.

        A worker repeats its Hello until it is answered. Of those that queued while this process did
        not listen only the first one counts. One that comes much later means that the answer was
        lost, and with it all that was sent after it.
        """
        if hello.instance in self._fenced:
            return Refused(f"fenced: {self._fenced[hello.instance]}")
        known = self._registry.get(hello.instance)
        now = time.monotonic()
        if known is not None and not known.settled and now < known.heard_at + ANSWERED_S:
            return welcome
        if known is not None:
            self._depart(known, "rejoined")
        try:
            self._registry.require_compatible(hello)
        except (LayoutMismatch, RoleMismatch) as error:
            log.warning("refused %s: %s", hello.instance, error)
            return Refused(str(error))
        worker = self._registry.add(hello, now)
        self._observer.worker_joined(worker)
        log.info("%s joined on %s", hello.instance, hello.device)
        return welcome

    def unknown(self, instance: str) -> Alive | Refused:
        """The answer to a message of an unknown worker: make it send Hello again, or end it if it
        is fenced."""
        if instance in self._fenced:
            return Refused(f"fenced: {self._fenced[instance]}")
        return Alive(NO_COORDINATOR)

    def distrust(self, instance: str, error: WireError) -> Refused:
        """The answer to a message that cannot be decoded or is not allowed. All are counted; at
        most one in ``DISTRUST_LOGGED_EVERY_S`` is logged."""
        now = time.monotonic()
        if now - self._distrust_logged_at >= DISTRUST_LOGGED_EVERY_S:
            log.warning(
                "refused %s: %s", instance, error, extra={"not_logged": self._num_not_logged}
            )
            self._distrust_logged_at, self._num_not_logged = now, 0
        else:
            self._num_not_logged += 1
        self._observer.distrusted(error)
        return Refused(str(error))

    def fence(self, worker: Worker, reason: str, departure: Departure = "silent") -> None:
        """Remove a worker, dead or not: its requests go elsewhere and it may not come back."""
        log.warning("fenced %s: %s", worker.instance, reason)
        self._fenced[worker.instance] = reason
        while len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)
        self._depart(worker, departure)

    def refuse_stranded(self, reported_before: float) -> list[tuple[str, Refused]]:
        """Fence workers whose pair with every partner is broken, so that the operator learns why.

        Where both workers of a pair are stranded the decode worker is fenced, unless the other is
        draining: the memory of that one may be gone, and the next one's is not.
        A worker that drains finishes what it has.
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
        for worker, problem in self._workers.hopeless():
            self.fence(worker, problem, "refused")
            refused.append((worker.instance, Refused(problem)))
        return refused

    def left(self, worker: Worker) -> None:
        """A worker said goodbye."""
        log.info("%s left", worker.instance)
        self._depart(worker, "goodbye")

    def _depart(self, worker: Worker, reason: Departure) -> None:
        self._workers.lost(worker.instance, died=reason == "silent")
        self._observer.worker_gone(worker, reason)
