"""The workers that may have a request, busy or not; choice.py chooses one of them. Pure.

    role     Prompts go to prefill or colocated workers. While no prefill worker takes work, they go
             to decode workers, which then continue the request as a colocated worker does. Placed
             requests stay where they are when a prefill worker is back.
    size     Workers that could not hold the request to its end are skipped while another worker
             could, full or not. If none could, the largest may have it: the request may end early,
             and fails if it outgrows that worker.
    path     A handoff goes to a decode worker that has proved that it can pull from there.
    health   A worker with an open breaker gets only probes, and no request returns to a worker at
             which it had faults. A worker is skipped while one of its handoffs takes too long, or
             shortly after several of its requests gave NaN.

Health never excludes the last worker that can hold a request.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from coordinator.core.request import Request
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker

HELD_BACK_S = 5.0
"""How long a request that gave NaN counts against its worker, until it is tried elsewhere."""
OVERDUE_LANDING_S = 2.0
"""A handoff takes milliseconds. A decode worker with a slower one gets no other handoffs."""


class Candidates:
    """Selects workers of ``registry`` that may have a request."""

    def __init__(self, registry: Registry, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._monotonic = monotonic

    def to_compute(self, request: Request) -> list[Worker]:
        """The workers that may compute the request's tokens, its prompt first."""
        standby = self._registry.decode_computes_prompts()
        generating = self._registry.of("decode" if standby else "colocated")
        if generating:
            return self._healthy(large_enough(generating, request.max_len), request)
        prefill = large_enough(self._registry.prefilling(), request.num_tokens)
        return self._healthy(prefill, request)

    def to_pull(self, request: Request, proved: set[str]) -> list[Worker]:
        """The decode workers in ``proved`` that can hold the request. Untested workers count in the
        comparison of sizes: the request waits for their test rather than take a smaller one."""
        able = large_enough(self._registry.decoding_from(request.prefill_worker), request.max_len)
        return self._healthy([w for w in able if w.instance in proved], request)

    def proved(self, prefill: str) -> set[str]:
        """The decode workers that take work and can read this prefill worker's memory, by their
        tests, without those whose handoffs from there fail while others work."""
        pairs, taking = self._registry.pairs, self._registry.taking("decode")
        usable = {w.instance for w in taking if pairs.usable(prefill, w.instance)}
        return self._registry.pair_breakers.pulling_from(prefill, usable, self._monotonic())

    def too_long_for_all(self, request: Request) -> bool:
        """True if the request was too long for a worker, and no large enough one has joined."""
        role = request.too_long_for
        if role == "prefill" and self._registry.decode_computes_prompts():
            role = "decode"
        return role is not None and not self._registry.holds(role, request.needs_len)

    def _healthy(self, workers: list[Worker], request: Request) -> list[Worker]:
        """The healthy ``workers`` for the request: at least one, unless ``workers`` is empty."""
        closed = [worker for worker in workers if worker.breaker.closed]
        able = workers
        if closed:
            now = self._monotonic()
            able = [
                w
                for w in closed
                if not (w.load.pending_pulls or w.unconfirmed) or not self._held_back(w, now)
            ] or closed
            if len(closed) < len(workers) and not request.troubled:
                able = able + [w for w in workers if w.breaker.takes_probe(now)]
        if not request.avoided:
            return able
        return [w for w in able if w.instance not in request.avoided] or able

    def _held_back(self, worker: Worker, now: float) -> bool:
        oldest = next(iter(worker.load.pending_pulls.values()), now)
        if now - oldest > OVERDUE_LANDING_S:
            return True
        num_faults = self._registry.breakers.num_faults
        if len(worker.unconfirmed) < num_faults:
            return False
        newest = islice(reversed(worker.unconfirmed.values()), num_faults)
        return sum(now - at < HELD_BACK_S for at in newest) >= num_faults


def large_enough(workers: Iterable[Worker], num_tokens: int) -> list[Worker]:
    """The workers that take work and can hold ``num_tokens``; if none can, the largest ones."""
    taking = [worker for worker in workers if not worker.draining]
    longest = max((worker.hello.max_seq_len for worker in taking), default=0)
    return [w for w in taking if w.hello.max_seq_len >= min(num_tokens, longest)]
