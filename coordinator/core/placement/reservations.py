"""Workers reserved for quarantined requests. Pure.

A quarantined request (requests/quarantine.py) is placed only at a worker that computes nothing
else. An idle worker is taken if there is one; otherwise a worker is reserved, gets no other
requests, and finishes what it has. At most half of the workers of a role are reserved, but one
always may be.
"""

from collections.abc import Callable

from coordinator.core.request import Request, State
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker


class Reservations:
    """Reserves workers of ``registry``. A reserved worker gets ``wait_s`` seconds to finish its
    other requests."""

    def __init__(self, registry: Registry, wait_s: float, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._reserved_at: dict[str, float] = {}  # by worker

    def idle_worker(self, request: Request, workers: list[Worker]) -> Worker | None:
        """The worker of ``workers`` that a quarantined request can be placed at now. None while
        its reserved worker is busy, or as many workers are reserved as may be."""
        mine = next((w for w in self._registry.all() if w.reserved_for is request), None)
        if mine is not None and mine in workers and not mine.load.is_busy:
            return mine
        free = [worker for worker in workers if worker.reserved_for is None]
        idle = [worker for worker in free if not worker.load.is_busy]
        if mine is None and not self._may_reserve(workers):
            return None
        if idle or mine not in workers:
            if mine is not None:
                self._free(mine)
            mine = min(idle or free, key=lambda w: w.load.num_sequences, default=None)
            if mine is not None:
                mine.reserved_for = request
                self._reserved_at[mine.instance] = self._monotonic()
        return mine if mine is not None and not mine.load.is_busy else None

    def free_unneeded(self) -> None:
        """Free the workers whose request has been computed there, has ended, or waits for another
        worker."""
        if not self._reserved_at:
            return
        for worker in self._registry.all():
            if worker.reserved_for is not None and self._is_over(worker, worker.reserved_for):
                self._free(worker)

    def forget(self, instance: str) -> None:
        """Remove the reservation of a worker that is gone."""
        self._reserved_at.pop(instance, None)

    def overdue(self) -> list[Request]:
        """Requests that a reserved worker should have finished by now, to be retried elsewhere."""
        reserved_before = self._monotonic() - self._wait_s
        late = {instance for instance, at in self._reserved_at.items() if at <= reserved_before}
        return [
            request
            for worker in self._registry.all()
            if worker.instance in late
            for request in worker.load.requests.values()
            if request is not worker.reserved_for and worker.load.computes(request)
        ]

    def _may_reserve(self, workers: list[Worker]) -> bool:
        if not workers:
            return False
        of_role = self._registry.of(workers[0].role)
        num_reserved = sum(worker.reserved_for is not None for worker in of_role)
        return num_reserved < max(1, len(of_role) // 2)

    def _is_over(self, worker: Worker, request: Request) -> bool:
        """True if the request no longer needs the worker that is reserved for it."""
        if request.state.terminal or not request.quarantined:
            return True
        if request.request_id in worker.load.requests and worker.load.computes(request):
            return False
        queued = request.state is State.QUEUED
        if worker.role == "decode":
            prompts_go_elsewhere = not self._registry.decode_computes_prompts()
            return not request.waiting or (queued and prompts_go_elsewhere)
        return not queued

    def _free(self, worker: Worker) -> None:
        worker.reserved_for = None
        self._reserved_at.pop(worker.instance, None)
