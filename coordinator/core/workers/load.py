"""The load of a worker: what it has to compute and to hold for the requests assigned to it. Pure.

This is the only count of a worker's load. Placement, reservations and heartbeats ask it, and
requests/attempts.py changes it. A worker's own report would be a heartbeat old, and would not know
what was placed since.
"""

from collections.abc import Sequence

from coordinator.core.request import Request, State
from coordinator.core.workers.kept_prefixes import PendingPrefixes
from transport.wire.messages import Hello

HEADROOM_LEN = 64
"""Tokens that a sequence has, at most, until others have made room for it."""


class Load:
    """The requests assigned to one worker, and the tokens and pages that they add up to."""

    def __init__(self, hello: Hello) -> None:
        self.requests: dict[str, Request] = {}
        self.by_key: dict[str, tuple[int, int]] = {}
        """The number of requests by API key, with the weight of the key."""
        self.pending_pulls: dict[str, float] = {}
        """When each handoff that the worker has yet to pull was placed here, oldest first."""
        self.pending_prefixes = PendingPrefixes()
        self.last_placed = 0
        """Orders workers by when they were last given a request; 0: never."""
        self.tokens_ahead = 0
        """Tokens to compute of requests whose first token has not arrived yet."""
        self.num_pages_assigned = 0
        """Pages that the requests need now, counted from their lengths."""
        self.num_pages_shared = 0
        """Pages that several of them share and that are held once: as many as the last heartbeat
        had, less all pages of requests that have been removed since."""
        self._layout = hello.memory.layout
        self._pools = hello.memory.pools
        self._max_sequences = min(hello.max_running, hello.memory.pools.num_state_slots)
        self._instance = hello.instance
        self._counted: dict[str, tuple[int, int]] = {}

    @property
    def num_sequences(self) -> int:
        return len(self.requests)

    @property
    def num_prompts(self) -> int:
        """Requests whose first token has not arrived yet."""
        return sum(ahead > 0 for _, ahead in self._counted.values())

    @property
    def is_busy(self) -> bool:
        """True if the worker computes any request; keeping an offer is no work."""
        return any(self.computes(request) for request in self.requests.values())

    @property
    def num_pages_needed(self) -> int:
        """Pages of all requests, with shared pages counted once."""
        return max(0, self.num_pages_assigned - self.num_pages_shared)

    @property
    def free_pages(self) -> int:
        """Pages of the worker that its requests do not need."""
        return self._pools.num_pages - self.num_pages_needed

    @property
    def is_short_of_pages(self) -> bool:
        """True if its sequences, several, have no pages for ``HEADROOM_LEN`` more tokens each."""
        return self.num_sequences > 1 and self.free_pages < self.headroom * self.num_sequences

    @property
    def headroom(self) -> int:
        """Pages of ``HEADROOM_LEN`` tokens of a sequence."""
        return self._layout.pages_for(HEADROOM_LEN)

    def ahead_of(self, request: Request) -> int:
        """Tokens to compute until the first token of an assigned request."""
        return self._counted[request.request_id][1]

    def has_room(
        self,
        num_tokens: int,
        *,
        share: float = 1.0,
        growing: bool = False,
        without: Sequence[Request] = (),
    ) -> bool:
        """True if a state slot and pages for ``num_tokens`` are free, within ``share`` of all
        pages. ``growing`` keeps one more page free for each sequence of the worker. A worker that
        could not hold so many tokens even alone counts as having room: it refuses the request.
        ``without``: assigned requests whose slots and pages count as free."""
        num_pages = self._layout.pages_for(num_tokens)
        num_sequences = self.num_sequences - len(without)
        if not num_sequences or num_pages > self._pools.num_pages:
            return True
        if num_sequences >= self._max_sequences:
            return False
        growth = num_sequences if growing else 0
        num_freed = sum(self._counted[each.request_id][0] for each in without)
        needed = self.num_pages_needed - num_freed + num_pages + growth
        return needed <= self._pools.num_pages * share

    def computes(self, request: Request) -> bool:
        """True if the worker has more to do for an assigned request than to keep its offer."""
        return request.state is not State.HANDOFF or request.decode_worker == self._instance

    def add(self, request: Request) -> None:
        """Assign a request to the worker."""
        if request.request_id not in self.requests:
            self._count_key(request, 1)
        self.requests[request.request_id] = request
        self.recount(request)

    def remove(self, request: Request) -> None:
        """Unassign a request. No-op for a request that is not assigned."""
        self.pending_pulls.pop(request.request_id, None)
        self.pending_prefixes.remove(request.request_id)
        if self.requests.pop(request.request_id, None) is not None:
            self._count_key(request, -1)
            pages, ahead = self._counted.pop(request.request_id)
            self.num_pages_assigned -= pages
            self.num_pages_shared = max(0, self.num_pages_shared - pages)
            self.tokens_ahead -= ahead

    def _count_key(self, request: Request, change: int) -> None:
        key, weight = request.spec.key, request.spec.weight
        num = self.by_key.pop(key, (0, weight))[0] + change
        if num:
            self.by_key[key] = num, weight

    def recount(self, request: Request) -> None:
        """Count an assigned request again: it has become longer, or its first token arrived."""
        num_tokens = request.num_tokens
        pages = self._layout.pages_for(num_tokens + 1)
        computing = request.state is State.PREFILLING
        ahead = num_tokens - request.num_expected if computing else 0
        pages_before, ahead_before = self._counted.get(request.request_id, (0, 0))
        if not computing and ahead_before:
            self.pending_prefixes.remove(request.request_id)
        if pages != pages_before or ahead != ahead_before:
            self.num_pages_assigned += pages - pages_before
            self.tokens_ahead += ahead - ahead_before
            self._counted[request.request_id] = pages, ahead
