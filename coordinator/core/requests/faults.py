"""Faults of requests: which worker each is charged to, and when that opens a breaker. Pure.

    lost_at_worker                         That worker.
    not_finite while a prompt is computed  That worker, once another attempt got further.
    not_finite at a decode worker          That worker, or the pair and both workers if it was the
                                           first step after a handoff; once another attempt got
                                           further.
    pull_timeout, digest_mismatch,
    peer_gone while the peer is live       The pair and both workers.
    stale_offer                            The pair and both workers, once another attempt got
                                           further, unless the offer had expired.

A fault that either worker of a pair may have caused opens the breaker of the pair, and the breaker
of a worker that fails with two partners. The next request that is computed there takes it back.

NaN may be caused by the request. It is charged when the request's next attempt gets past that
token, and dropped when that attempt gives NaN too. With the charge, a peer whose prefix the request
began with is told to drop that prefix.

The breaker of the last worker of a role never opens. placement/choice.py says which workers
get no requests because of their faults.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.core.effects import BreakerMoved, Charged, Effect, Send
from coordinator.core.request import Request
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import DropPrefix, Role
from transport.wire.offers import PrefixName

_OF_PAIRS = frozenset({"pull_timeout", "digest_mismatch", "stale_offer", "peer_gone"})
_UNCONFIRMED = frozenset({"not_finite", "stale_offer"})
_PARTNERS: dict[Role, tuple[Role, ...]] = {"prefill": ("decode",), "decode": ("prefill",)}


@dataclass(frozen=True)
class _Charge:
    """A fault of one worker, or of a pair (prefill, decode)."""

    code: str
    workers: tuple[str, ...]
    placed_at: tuple[float, ...]
    """When the request was placed at each of the workers."""
    at: float
    pulled: PrefixName | None = None
    """The prefix that the request began with, if it was pulled from a peer."""
    pulled_from: str = ""


class Faults:
    """Charges faults and moves the breakers. What follows is returned: charges, moves of breakers,
    and orders to drop a prefix."""

    def __init__(self, registry: Registry, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._unconfirmed: dict[str, _Charge] = {}  # by request, whose own doing it may be
        self._pairs = registry.pair_breakers

    def failed(
        self, request: Request, instance: str, code: str, pulled: PrefixName | None = None
    ) -> list[Effect]:
        """Charge a failed attempt at a worker; the attempt began with the prefix ``pulled``."""
        charge = self._charge_of(request, instance, code)
        if pulled is not None:
            charge = replace(charge, pulled=pulled, pulled_from=request.prefix_from)
        if code == "stale_offer" and request.offer is None:
            return []  # the prefill worker has said that the offer expired
        if code in _UNCONFIRMED:
            request.avoided |= set(charge.workers)
            if self._take_unconfirmed(request) is None:
                self._hold(request, charge)
        elif self._is_fault(request, code):
            request.avoided |= set(charge.workers)
            return self._apply(charge)
        return []

    def offer_expired(self, request: Request) -> None:
        """Drop the charge for a stale offer: the prefill worker says that the offer of an earlier
        attempt had expired, so it is no fault that the decode worker found it stale."""
        charge = self._unconfirmed.get(request.request_id)
        if charge is not None and charge.code == "stale_offer":
            self._take_unconfirmed(request)

    def got_token(self, request: Request) -> list[Effect]:
        """Apply the charge that waited until the request got further."""
        charge = self._take_unconfirmed(request) if self._unconfirmed else None
        return [] if charge is None else self._apply(charge)

    def succeeded(self, request: Request) -> list[Effect]:
        """Close the breakers that the request probed: its workers have computed it, its handoff
        included."""
        request.decoded = True
        now = self._monotonic()
        effects: list[Effect] = []
        for instance in {request.prefill_worker, request.decode_worker} - {""}:
            worker = self._registry.get(instance)
            if worker is not None and worker.breaker.worked(now, request.placed_at(instance)):
                effects.append(BreakerMoved(worker, "closed", "a request was computed there"))
        pair = self._pairs.get(request.prefill_worker, request.decode_worker)
        if pair is not None:
            pair.worked(now, request.assigned_at)
        return effects

    def forget(self, request: Request) -> None:
        """Drop what waits for a request that has ended."""
        self._take_unconfirmed(request)

    def placed(self, request: Request, worker: Worker) -> list[Effect]:
        """Make a request that was placed at a worker the probe of each open breaker there."""
        now = self._monotonic()
        breakers = [worker.breaker]
        pair = self._pairs.get(request.prefill_worker, worker.instance)
        if pair is not None:
            breakers.append(pair)
        effects: list[Effect] = []
        for breaker in breakers:
            if breaker.takes_probe(now):
                breaker.probe(self._is_pending(request, worker.instance))
                if breaker is worker.breaker:
                    why = f"{request.request_id} probes it"
                    effects.append(BreakerMoved(worker, "half-open", why))
        return effects

    def _charge_of(self, request: Request, instance: str, code: str) -> _Charge:
        first_step = instance == request.decode_worker and not request.decoded
        shared = code in _OF_PAIRS or (code == "not_finite" and first_step)
        exporter = request.prefill_worker
        if code == "pull_timeout" and instance == exporter and request.prefix_from:
            exporter = request.prefix_from  # the copy of a prefix did not end
            self._stop_pulling_prefixes(exporter, instance)
        pair = shared and exporter not in ("", instance)
        workers = (exporter, instance) if pair else (instance,)
        placed_at = tuple(request.placed_at(each) for each in workers)
        return _Charge(code, workers, placed_at, self._monotonic())

    def _stop_pulling_prefixes(self, exporter: str, puller: str) -> None:
        """Let ``puller`` pull no more prefixes from ``exporter``. A decode worker's handoffs are
        not affected."""
        worker = self._registry.get(puller)
        if worker is not None and not worker.can_be("decode"):
            problem = "the copy of a prefix did not end"
            now = self._monotonic()
            self._registry.prefix_pairs.report(exporter, puller, problem, now)

    def _is_fault(self, request: Request, code: str) -> bool:
        if code == "peer_gone":
            return self._registry.get(request.prefill_worker) is not None
        return code in _OF_PAIRS or code == "lost_at_worker"

    def _apply(self, charge: _Charge) -> list[Effect]:
        now = self._monotonic()
        effects: list[Effect] = []
        for instance, placed_at in zip(charge.workers, charge.placed_at, strict=True):
            worker = self._registry.get(instance)
            if worker is None:
                continue
            effects.append(Charged(worker, charge.code))
            partner = "".join(other for other in charge.workers if other != instance)
            opened = worker.breaker.fault(
                now, placed_at, partner=partner, num_partners=self._num_partners(worker),
                may_open=self._registry.is_replaceable(worker),
            )  # fmt: skip
            if opened:
                why = f"{charge.code}; the next probe in {worker.breaker.pause_s:g} s"
                effects.append(BreakerMoved(worker, "open", why))
        if charge.pulled is not None and self._registry.get(charge.pulled_from) is not None:
            effects.append(Send(charge.pulled_from, DropPrefix(charge.pulled)))
        if len(charge.workers) == 2:
            prefill, decode = charge.workers
            self._pairs.fault(prefill, decode, now, charge.placed_at[1])
        return effects

    def _hold(self, request: Request, charge: _Charge) -> None:
        """Keep a charge until the request's next attempt confirms it."""
        self._unconfirmed[request.request_id] = charge
        for worker in self._of(charge) if charge.code == "not_finite" else ():
            worker.unconfirmed[request.request_id] = charge.at

    def _take_unconfirmed(self, request: Request) -> _Charge | None:
        """Remove and return the charge that waits for the request's next attempt."""
        charge = self._unconfirmed.pop(request.request_id, None)
        for worker in self._of(charge) if charge is not None else ():
            worker.unconfirmed.pop(request.request_id, None)
        return charge

    def _of(self, charge: _Charge) -> list[Worker]:
        found = (self._registry.get(instance) for instance in charge.workers)
        return [worker for worker in found if worker is not None]

    def _num_partners(self, worker: Worker) -> int:
        roles = _PARTNERS.get(worker.role, ())
        return sum(len(self._registry.taking(role)) for role in roles)

    def _is_pending(self, request: Request, instance: str) -> Callable[[], bool]:
        """A function that is True while a request that was just placed at a worker has yet to show
        whether that worker works."""
        attempt = request.attempt

        def is_pending() -> bool:
            if request.state.terminal:
                return False
            here = instance in (request.prefill_worker, request.decode_worker)
            if request.attempt == attempt and here:
                return not request.decoded
            charge = self._unconfirmed.get(request.request_id)
            return charge is not None and instance in charge.workers

        return is_pending
