"""Requests whose workers die: which are suspects, and at which worker each is tried alone. Pure.

A request may be what ends its workers. One that was aboard two of them as they died, without
``pass_len`` tokens between, is a suspect: it is placed only at workers that have nothing else to
compute and get nothing else meanwhile. If one of them dies too, the request is to blame;
``pass_len`` tokens beyond the last death, or its end, acquit it. At most half of the workers of a
role, but always one, are reserved for suspects.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core.request import Request, State
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker


@dataclass(frozen=True)
class TrialLimits:
    """``num_deaths`` without ``pass_len`` tokens between make a suspect. A worker that is reserved
    for one has ``wait_s`` to finish what it has; the rest is placed anew elsewhere then. A request
    that lost ``max_losses`` workers in all is given up, whatever it achieved between."""

    num_deaths: int = 2
    pass_len: int = 32
    wait_s: float = 30.0
    max_losses: int = 8

    def __post_init__(self) -> None:
        for name in ("num_deaths", "pass_len", "max_losses"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} < 1")
        if self.wait_s < 0:
            raise ValueError(f"wait_s: {self.wait_s} is negative")


class Trials:
    """Suspects, and the workers reserved for them."""

    def __init__(
        self, registry: Registry, limits: TrialLimits, monotonic: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._monotonic = monotonic
        self._reserved_at: dict[str, float] = {}  # by worker

    def died(self, request: Request) -> None:
        """A worker died with the request aboard."""
        if request.num_tokens >= request.died_at_len + self._limits.pass_len:
            request.deaths = 0
        request.deaths += 1
        request.died_at_len = request.num_tokens
        request.suspect = request.deaths >= self._limits.num_deaths

    def too_many(self, request: Request) -> bool:
        """Whether it has lost more workers than any request may."""
        return request.losses > self._limits.max_losses

    def passes(self, request: Request) -> bool:
        """Whether its newest token acquits it."""
        if request.num_tokens < request.died_at_len + self._limits.pass_len:
            return False
        request.suspect = False
        return True

    def alone(self, workers: list[Worker], request: Request) -> Worker | None:
        """Of ``workers``, the one to place a suspect at now; None: one is reserved, and finishes
        what it has, or as many are reserved as may be."""
        mine = next((w for w in self._registry.all() if w.reserved_for is request), None)
        if mine is not None and mine in workers and not mine.load.is_busy:
            return mine
        free = [worker for worker in workers if worker.reserved_for is None]
        idle = [worker for worker in free if not worker.load.is_busy]
        if mine is None and not self._may_reserve(workers):
            return None
        if idle or mine not in workers:
            if mine is not None:
                self._unreserve(mine)
            mine = min(idle or free, key=lambda w: w.load.num_sequences, default=None)
            if mine is not None:
                mine.reserved_for = request
                self._reserved_at[mine.instance] = self._monotonic()
        return mine if mine is not None and not mine.load.is_busy else None

    def free_reservations(self) -> None:
        """Free the workers whose suspect was tried, or waits elsewhere."""
        if not self._reserved_at:
            return
        for worker in self._registry.all():
            if worker.reserved_for is not None and self._over(worker, worker.reserved_for):
                self._unreserve(worker)

    def worker_gone(self, instance: str) -> None:
        self._reserved_at.pop(instance, None)

    def in_the_way(self) -> list[Request]:
        """Requests at reserved workers that have had their time to end there."""
        overdue = self._monotonic() - self._limits.wait_s
        late = {instance for instance, at in self._reserved_at.items() if at <= overdue}
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
        of_role = self._registry.of(workers[0].hello.role)
        num_reserved = sum(worker.reserved_for is not None for worker in of_role)
        return num_reserved < max(1, len(of_role) // 2)

    def _over(self, worker: Worker, request: Request) -> bool:
        """Whether the request needs the worker reserved for it no more."""
        if request.state.terminal or not request.suspect:
            return True
        if request.request_id in worker.load.requests and worker.load.computes(request):
            return False
        queued = request.state is State.QUEUED
        if worker.hello.role == "decode":
            return not request.waiting or (queued and not self._registry.standing_in())
        return not queued

    def _unreserve(self, worker: Worker) -> None:
        worker.reserved_for = None
        self._reserved_at.pop(worker.instance, None)
