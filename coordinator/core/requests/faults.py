"""Which worker a request's fault is charged to, and when that opens a breaker. Pure.

    what                                   charged to
    not_finite while a prompt is computed  that worker, once another attempt got further
    not_finite at a decode worker          that worker; in the first step after a handoff the pair
                                           and both workers; once another attempt got further
    pull_timeout, digest_mismatch,         the pair and both workers
    peer_gone while the peer is here
    stale_offer                            the same, once another attempt got further and unless
                                           the offer had expired
    lost_at_worker                         that worker

A fault that either worker of a pair may have caused opens the breaker of a worker that fails with
two partners, and of the pair; the next request that is computed there takes it back. NaN may be
the request's own doing: it is charged when the request's next attempt gets past that token, and
dropped when that attempt gives NaN as well. With the charge a peer whose prefix the request began
with is told to drop that.

The breaker of the last worker of a role never opens. candidates.py says what gets no requests
because of its faults.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.core.effects import BreakerMoved, Charged, Send
from coordinator.core.request import Request
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import DropPrefix, Role
from transport.wire.offers import PrefixName

_OF_PAIRS = frozenset({"pull_timeout", "digest_mismatch", "stale_offer", "peer_gone"})
_UNPROVED = frozenset({"not_finite", "stale_offer"})
_PARTNERS: dict[Role, tuple[Role, ...]] = {"prefill": ("decode",), "decode": ("prefill",)}


@dataclass(frozen=True)
class _Charge:
    """A fault of one worker or of a pair (prefill, decode), at ``at``; ``placed_at`` are when its
    request was placed at each of them. The request began with the prefix ``pulled``, if any, which
    the worker ``pulled_from`` keeps."""

    code: str
    workers: tuple[str, ...]
    placed_at: tuple[float, ...]
    at: float
    pulled: PrefixName | None = None
    pulled_from: str = ""


class Faults:
    """Charges faults and keeps the breakers; ``tell`` is called with charges, moves of breakers,
    and the order to a worker to drop a prefix."""

    def __init__(
        self,
        registry: Registry,
        monotonic: Callable[[], float],
        tell: Callable[[Charged | BreakerMoved | Send], None],
    ) -> None:
        self._registry = registry
        self._settings = registry.breakers
        self._monotonic = monotonic
        self._tell = tell
        self._unproved: dict[str, _Charge] = {}  # NaN by request, which may be its own doing
        self._pairs = registry.pair_breakers

    def failed(
        self, request: Request, instance: str, code: str, pulled: PrefixName | None = None
    ) -> None:
        """The request's attempt, which began with the prefix ``pulled``, failed at a worker that it
        was placed at."""
        charge = self._charge_of(request, instance, code)
        if pulled is not None:
            charge = replace(charge, pulled=pulled, pulled_from=request.prefix_from)
        if code == "stale_offer" and request.offer is None:
            return  # the prefill worker has said that the offer expired
        if code in _UNPROVED:
            request.avoided |= set(charge.workers)
            if self._settle(request) is None:
                self._suspect(request, charge)
        elif self._is_fault(request, code):
            request.avoided |= set(charge.workers)
            self._take_in(charge)

    def offer_expired(self, request: Request) -> None:
        """The prefill worker says that the offer of an attempt before had expired: that the decode
        worker found it stale is no fault."""
        charge = self._unproved.get(request.request_id)
        if charge is not None and charge.code == "stale_offer":
            self._settle(request)

    def got_further(self, request: Request) -> None:
        """A token of the request has come."""
        charge = self._settle(request) if self._unproved else None
        if charge is not None:
            self._take_in(charge)

    def worked(self, request: Request) -> None:
        """The request's workers have computed it, its handoff included."""
        request.proved = True
        now = self._monotonic()
        for instance in {request.prefill_worker, request.decode_worker} - {""}:
            worker = self._registry.get(instance)
            if worker is not None and worker.breaker.worked(now, request.placed_at(instance)):
                self._tell(BreakerMoved(worker, "closed", "a request was computed there"))
        pair = self._pairs.get(request.prefill_worker, request.decode_worker)
        if pair is not None:
            pair.worked(now, request.assigned_at)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._settle(request)

    def placed(self, request: Request, worker: Worker) -> None:
        """The request was placed at a worker; it is a probe if the breaker there is open."""
        now = self._monotonic()
        breakers = [worker.breaker]
        pair = self._pairs.get(request.prefill_worker, worker.instance)
        if pair is not None:
            breakers.append(pair)
        for breaker in breakers:
            if breaker.takes_probe(now):
                breaker.probe(self._under_way(request, worker.instance))
                if breaker is worker.breaker:
                    why = f"{request.request_id} probes it"
                    self._tell(BreakerMoved(worker, "half-open", why))

    def hopeless(self) -> list[tuple[Worker, str]]:
        """Workers to be ended and why: probe after probe failed, and others do their work."""
        return [
            (worker, f"{self._settings.max_failed_probes} requests in a row failed as probes")
            for worker in self._registry.all()
            if not worker.breaker.closed and worker.breaker.hopeless and self._spared(worker)
        ]

    def _charge_of(self, request: Request, instance: str, code: str) -> _Charge:
        first_step = instance == request.decode_worker and not request.proved
        shared = code in _OF_PAIRS or (code == "not_finite" and first_step)
        exporter = request.prefill_worker
        if code == "pull_timeout" and instance == exporter and request.prefix_from:
            exporter = request.prefix_from  # the copy of a prefix did not end
            self._distrust(exporter, instance)
        pair = shared and exporter not in ("", instance)
        workers = (exporter, instance) if pair else (instance,)
        placed_at = tuple(request.placed_at(each) for each in workers)
        return _Charge(code, workers, placed_at, self._monotonic())

    def _distrust(self, exporter: str, puller: str) -> None:
        """No prefix is pulled there any more; a decode worker's handoffs go on as they are."""
        worker = self._registry.get(puller)
        if worker is not None and worker.hello.role != "decode":
            problem = "the copy of a prefix did not end"
            now = self._monotonic()
            self._registry.prefix_pairs.report(exporter, puller, problem, now)

    def _is_fault(self, request: Request, code: str) -> bool:
        if code == "peer_gone":
            return self._registry.get(request.prefill_worker) is not None
        return code in _OF_PAIRS or code == "lost_at_worker"

    def _take_in(self, charge: _Charge) -> None:
        now = self._monotonic()
        for instance, placed_at in zip(charge.workers, charge.placed_at, strict=True):
            worker = self._registry.get(instance)
            if worker is None:
                continue
            self._tell(Charged(worker, charge.code))
            partner = "".join(other for other in charge.workers if other != instance)
            opened = worker.breaker.fault(
                now, placed_at, partner=partner, num_partners=self._num_partners(worker),
                may_open=self._spared(worker),
            )  # fmt: skip
            if opened:
                why = f"{charge.code}; the next probe in {worker.breaker.pause_s:g} s"
                self._tell(BreakerMoved(worker, "open", why))
        if charge.pulled is not None and self._registry.get(charge.pulled_from) is not None:
            self._tell(Send(charge.pulled_from, DropPrefix(charge.pulled)))
        if len(charge.workers) == 2:
            prefill, decode = charge.workers
            self._pairs.fault(prefill, decode, now, charge.placed_at[1])

    def _suspect(self, request: Request, charge: _Charge) -> None:
        """The charge waits for the request's next attempt."""
        self._unproved[request.request_id] = charge
        for worker in self._of(charge) if charge.code == "not_finite" else ():
            worker.unconfirmed[request.request_id] = charge.at

    def _settle(self, request: Request) -> _Charge | None:
        """The charge that waited for the request's next attempt."""
        charge = self._unproved.pop(request.request_id, None)
        for worker in self._of(charge) if charge is not None else ():
            worker.unconfirmed.pop(request.request_id, None)
        return charge

    def _of(self, charge: _Charge) -> list[Worker]:
        found = (self._registry.get(instance) for instance in charge.workers)
        return [worker for worker in found if worker is not None]

    def _spared(self, worker: Worker) -> bool:
        """Whether another worker of its role takes requests."""
        others = self._registry.taking(worker.hello.role)
        return any(other.breaker.closed for other in others if other is not worker)

    def _num_partners(self, worker: Worker) -> int:
        roles = _PARTNERS.get(worker.hello.role, ())
        return sum(len(self._registry.taking(role)) for role in roles)

    def _under_way(self, request: Request, instance: str) -> Callable[[], bool]:
        """Whether the request, just placed at the worker, has yet to show whether that works."""
        attempt = request.attempt

        def under_way() -> bool:
            if request.state.terminal:
                return False
            here = instance in (request.prefill_worker, request.decode_worker)
            if request.attempt == attempt and here:
                return not request.proved
            charge = self._unproved.get(request.request_id)
            return charge is not None and instance in charge.workers

        return under_way
