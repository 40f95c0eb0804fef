"""Which workers may have a request, busy or not; placement.py chooses among those. Pure.

    role     prompts go to prefill workers, to colocated ones, or, while no prefill worker takes
             work, to decode workers, which then go on with the request as a colocated worker does.
             What was placed stays where it is when a prefill worker is back.
    size     workers that could not hold the request to its end are passed over while there is one
             that can, full or not. When there is none, the largest may have it: it may end early.
             It fails where it outgrows that worker.
    path     a handoff goes to a decode worker that has proved that it can pull from there
    health   a worker with an open breaker gets only probes, and no request goes back to a worker
             that it had faults at; one with a handoff that takes too long, or with several requests
             that gave NaN a moment ago, is passed over meanwhile

Health never leaves out the last worker that can hold a request.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from coordinator.core.request import Request
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker

HELD_BACK_S = 5.0
"""How long a request that gave NaN and has not been tried elsewhere counts against its worker."""
OVERDUE_LANDING_S = 2.0
"""A handoff takes milliseconds; a decode worker with one that takes longer gets no others."""


class Candidates:
    """The workers of ``registry`` that may have a request. ``monotonic`` is the lifecycle's."""

    def __init__(self, registry: Registry, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._monotonic = monotonic

    def to_compute(self, request: Request) -> list[Worker]:
        """Workers that may compute the request's tokens, its prompt first."""
        standby = self._registry.decode_computes_prompts()
        generating = self._registry.of("decode" if standby else "colocated")
        if generating:
            return self._healthy(large_enough(generating, request.max_len), request)
        prefill = large_enough(self._registry.prefilling(), request.num_tokens)
        return self._healthy(prefill, request)

    def to_pull(self, request: Request, proved: set[str]) -> list[Worker]:
        """Decode workers that can hold the request and have ``proved`` to read its offer right. One
        that has yet to prove it counts too: until then the request waits rather than take a smaller
        one."""
        able = large_enough(self._registry.decoding_from(request.prefill_worker), request.max_len)
        return self._healthy([w for w in able if w.instance in proved], request)

    def proved(self, prefill: str) -> set[str]:
        """Decode workers that take work and read this prefill worker's memory right, without those
        whose handoffs from there fail while others work."""
        pairs, taking = self._registry.pairs, self._registry.taking("decode")
        usable = {w.instance for w in taking if pairs.usable(prefill, w.instance)}
        return self._registry.pair_breakers.pulling_from(prefill, usable, self._monotonic())

    def too_long_for_all(self, request: Request) -> bool:
        """Whether it was too long for a worker, and one as large as it needs has yet to be back."""
        role = request.too_long_for
        if role == "prefill" and self._registry.decode_computes_prompts():
            role = "decode"
        return role is not None and not self._registry.holds(role, request.needs_len)

    def _healthy(self, workers: list[Worker], request: Request) -> list[Worker]:
        """Those that may have the request now: at least one, unless ``workers`` is empty."""
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
    """Those that take work and can hold so many tokens; if none can, the largest."""
    taking = [worker for worker in workers if not worker.draining]
    longest = max((worker.hello.max_seq_len for worker in taking), default=0)
    return [w for w in taking if w.hello.max_seq_len >= min(num_tokens, longest)]
