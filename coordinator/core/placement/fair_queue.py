"""The waiting requests, by API key: weighted deficit round robin. Pure.

order     Within a key the oldest request goes first, whatever its attempt. Without keys all
          requests are of one key, "".
turns     Keys with waiting requests take turns. At each turn a key's deficit grows by
          ``QUANTUM`` × its weight, and its requests are placed while the deficit is positive.
cost      What a placed request costs is charged afterwards: the prompt tokens that its worker
          has to compute, and ``SLOT_COST`` for its place in decode steps. So the deficit may
          become negative, by the cost of one request at most, and turns make up for it.
return    A key that had no request waiting gets the next turn, unless it had one in this
          round. Its deficit has grown by the rounds that it missed, to one turn's at most.
priority  Keys of a higher priority go first. But keys below get one request placed for every
          ``LOWER_EVERY`` quanta that others were given meanwhile.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection

from coordinator.core.request import Request

QUANTUM = 2_048
SLOT_COST = 128
LOWER_EVERY = 8


class _Flow:
    """The waiting requests of one key, oldest first."""

    def __init__(self, key: str, weight: int, priority: int) -> None:
        self.key = key
        self.requests: list[Request] = []
        self.priority = priority
        self.weight = weight
        self.deficit = self.quantum = QUANTUM * weight
        self.turn = -1
        """The round of its last turn."""

    def first(self, skipped: Collection[Request], blocked: Collection[str]) -> Request | None:
        """The oldest request that is not skipped; None if the key is blocked."""
        if self.key in blocked:
            return None
        return next((each for each in self.requests if each not in skipped), None)


class _Ring:
    """The keys of one priority that have requests waiting. The first one has its turn. Behind it
    come those that had none in this round, then those that had one."""

    def __init__(self) -> None:
        self.flows: deque[_Flow] = deque()
        self.passed = 0
        """What requests of higher priorities cost that were placed while others waited here."""
        self._round = 0

    def join(self, flow: _Flow) -> None:
        """Let a key take turns again."""
        missed = max(0, self._round - flow.turn - 1)
        flow.deficit = min(flow.quantum, flow.deficit + missed * flow.quantum)
        if not self.flows:
            self.passed = 0
        if flow.turn < self._round:
            self.flows.insert(1, flow)
        else:
            self.flows.append(flow)

    def leave(self, flow: _Flow) -> None:
        """Take a key out that has no request waiting. If it had its turn, that is over."""
        had_turn = self.flows[0] is flow
        self.flows.remove(flow)
        if had_turn and self.flows:
            self._begin_turn()

    def next(self, skipped: Collection[Request], blocked: Collection[str]) -> Request | None:
        """The first request of the key whose turn it is. If that is skipped, its turn lasts, and
        the first one of another key is returned; None if all are skipped."""
        firsts = {flow: first for flow in self.flows if (first := flow.first(skipped, blocked))}
        if not firsts:
            return None
        while self.flows[0].deficit <= 0:
            self.flows.rotate(-1)
            self._begin_turn()
        for flow in self.flows:
            if flow in firsts and flow.deficit > 0:
                return firsts[flow]
        return next(iter(firsts.values()))

    def _begin_turn(self) -> None:
        flow = self.flows[0]
        self._round += flow.turn == self._round
        flow.turn = self._round
        flow.deficit = min(flow.quantum, flow.deficit + flow.quantum)


class FairQueue:
    """The requests that wait to be placed."""

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._rings: dict[int, _Ring] = {}
        self.num_tokens = 0
        """Tokens of all requests here."""

    def __len__(self) -> int:
        return sum(len(flow.requests) for flow in self._flows.values())

    def __contains__(self, request: Request) -> bool:
        flow = self._flows.get(request.spec.key)
        return flow is not None and any(each is request for each in flow.requests)

    def add(self, request: Request) -> None:
        """Queue a request, before all later ones of its key."""
        flow, ring = self._flow_of(request)
        insort(flow.requests, request, key=_arrival)
        self.num_tokens += request.num_tokens
        if len(flow.requests) == 1:
            ring.join(flow)

    def remove(self, request: Request) -> None:
        """Remove a request if it is here."""
        flow, ring = self._flow_of(request)
        at = bisect_left(flow.requests, request.arrival, key=_arrival)
        if at < len(flow.requests) and flow.requests[at] is request:
            del flow.requests[at]
            self.num_tokens -= request.num_tokens
            if not flow.requests:
                ring.leave(flow)

    @property
    def weights(self) -> dict[str, int]:
        """The weights of the keys that have requests here."""
        return {key: flow.weight for key, flow in self._flows.items() if flow.requests}

    def next(
        self, skipped: Collection[Request] = (), blocked: Collection[str] = ()
    ) -> Request | None:
        """The request to be placed next, without those in ``skipped`` and those of the keys in
        ``blocked``; None if there is none."""
        rings = sorted(self._rings.items(), key=lambda each: (not _is_due(each[1]), -each[0]))
        found = (ring.next(skipped, blocked) for _, ring in rings)
        return next((request for request in found if request is not None), None)

    def placed(self, request: Request, num_computed: int) -> None:
        """Remove a request that was placed at a worker which computes ``num_computed`` of its
        tokens, and charge its key."""
        (flow, ring), cost = self._flow_of(request), num_computed + SLOT_COST
        flow.deficit -= cost
        self.remove(request)
        ring.passed = 0
        for priority, lower in self._rings.items():
            if priority < flow.priority and lower.flows:
                lower.passed += cost

    def _flow_of(self, request: Request) -> tuple[_Flow, _Ring]:
        spec = request.spec
        flow = self._flows.get(spec.key)
        if flow is None:
            flow = self._flows[spec.key] = _Flow(spec.key, spec.weight, spec.priority)
            self._rings.setdefault(spec.priority, _Ring())
        return flow, self._rings[flow.priority]


def _is_due(ring: _Ring) -> bool:
    return bool(ring.flows) and ring.passed >= LOWER_EVERY * QUANTUM


def _arrival(request: Request) -> int:
    return request.arrival
