"""One worker as the coordinator knows it. Pure."""

from dataclasses import dataclass, field
from math import inf

from coordinator.core.contract import SpreadStatus, WorkerStatus
from coordinator.core.request import Request, State
from coordinator.core.workers.breaker import Breaker
from coordinator.core.workers.kept_prefixes import ComingPrefixes
from coordinator.core.workers.meters import DraftMeter, PrefixMeter, SpreadMeter, TokenMeter
from transport.wire.layout import CacheLayout
from transport.wire.messages import Hello
from transport.wire.reports import GpuHealth, WorkerGauges


@dataclass(eq=False)
class Worker:
    """One welcomed worker. ``assigned`` holds the requests it is responsible for, which is
    also how its memory is accounted for between two heartbeats: ``num_pages_assigned`` are the
    pages that they need now, counted from their lengths, and ``tokens_ahead`` the tokens to compute
    of those whose first token has not come yet. ``assign``, ``unassign`` and ``recount`` keep both.
    ``num_pages_shared`` are counted for several of them, and held once: as many as its last
    heartbeat had, less all pages of requests that have left since.

    ``heard_at`` is of the monotonic clock: a step of the system's must not look like silence.
    ``settled``: it has said more than hello. ``last_placed`` orders workers by when they were last
    given a request; 0: never. ``beats`` are when its last two heartbeats came, as ``note_beat``
    counts them. ``gpu`` is what its GPU said last, as far as it can be asked; ``malformed_dropped``
    is how many messages it could not read. ``prompt_tokens`` and ``output_tokens`` count
    what it reported as computed, stale or not.

    ``keeps_prefixes``: it has told what it keeps of earlier requests. ``coming`` are the prefixes
    that it is computing then.

    ``breaker`` says whether its faults keep requests away. ``unproved`` has the requests that gave
    NaN here and were not yet tried elsewhere, by when that was; ``landing`` those that it has yet
    to pull, by when they were placed here, oldest first. While ``reserved_for`` is set, only that
    request is placed here.
    """

    hello: Hello
    gauges: WorkerGauges
    heard_at: float
    breaker: Breaker
    draining: bool = False
    settled: bool = False
    keeps_prefixes: bool = False
    last_placed: int = 0
    beats: tuple[float, float] = (-inf, -inf)
    gpu: GpuHealth | None = None
    prompt_tokens: TokenMeter = field(default_factory=TokenMeter)
    output_tokens: TokenMeter = field(default_factory=TokenMeter)
    drafts: DraftMeter = field(default_factory=DraftMeter)
    prefixes: PrefixMeter = field(default_factory=PrefixMeter)
    spread: SpreadMeter = field(default_factory=SpreadMeter)
    malformed_dropped: int = 0
    unproved: dict[str, float] = field(default_factory=dict)
    landing: dict[str, float] = field(default_factory=dict)
    reserved_for: Request | None = None
    coming: ComingPrefixes = field(default_factory=ComingPrefixes)
    assigned: dict[str, Request] = field(default_factory=dict)
    num_pages_assigned: int = 0
    num_pages_shared: int = 0
    tokens_ahead: int = 0
    _counted: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        return self.hello.instance

    @property
    def layout(self) -> CacheLayout:
        return self.hello.memory.layout

    def note_beat(self, now: float, heartbeat_s: float) -> None:
        """A heartbeat came. Those that queued up while this process did not listen count as one."""
        if now - self.beats[1] >= heartbeat_s / 2:
            self.beats = self.beats[1], now

    @property
    def kept_bytes(self) -> int:
        """Bytes of its pages and state slots that only kept prefixes hold."""
        held, layout = self.gauges.prefix, self.layout
        return held.pages_kept * layout.page_bytes + held.num_kept * layout.state_slot_bytes

    def status(self, now: float, spread: SpreadStatus | None = None) -> WorkerStatus:
        """``now`` is of the monotonic clock; ``spread`` is what its groups say of it."""
        pools, prefixes = self.hello.memory.pools, self.prefixes.recent
        return WorkerStatus(
            instance=self.instance,
            role=self.hello.role,
            device=self.hello.device,
            running=self.gauges.running,
            waiting=self.gauges.waiting,
            free_pages=self.gauges.free_pages,
            num_pages=pools.num_pages,
            free_state_slots=self.gauges.free_state_slots,
            num_state_slots=pools.num_state_slots,
            accounting_error=self.gauges.accounting_error,
            draining=self.draining,
            gpu_temperature_c=None if self.gpu is None else self.gpu.temperature_c,
            prompt_tokens_per_s=self.prompt_tokens.rate(now),
            output_tokens_per_s=self.output_tokens.rate(now),
            breaker=self.breaker.state,
            drafts=self.drafts.num_drafts,
            tokens_per_step=self.drafts.tokens_per_step,
            draft_acceptance=self.drafts.acceptance,
            queried_tokens=prefixes.queried,
            reused_tokens=prefixes.reused_gpu + prefixes.reused_host + prefixes.reused_peer,
            kept_prefixes=prefixes.num_kept,
            kept_prefixes_host=prefixes.num_kept_host,
            spread=spread,
        )

    def assign(self, request: Request) -> None:
        self.assigned[request.request_id] = request
        self.recount(request)

    def unassign(self, request: Request) -> None:
        self.landing.pop(request.request_id, None)
        self.coming.remove(request.request_id)
        if self.assigned.pop(request.request_id, None) is not None:
            pages, ahead = self._counted.pop(request.request_id)
            self.num_pages_assigned -= pages
            self.num_pages_shared = max(0, self.num_pages_shared - pages)
            self.tokens_ahead -= ahead

    def recount(self, request: Request) -> None:
        """A request that is here has become longer, or its first token has come."""
        num_tokens = request.num_tokens
        pages = self.layout.pages_for(num_tokens + 1)
        computing = request.state is State.PREFILLING
        ahead = num_tokens - request.num_expected if computing else 0
        if not computing:
            self.coming.remove(request.request_id)
        pages_before, ahead_before = self._counted.get(request.request_id, (0, 0))
        if pages != pages_before or ahead != ahead_before:
            self.num_pages_assigned += pages - pages_before
            self.tokens_ahead += ahead - ahead_before
            self._counted[request.request_id] = pages, ahead

    def take_gauges(self, gauges: WorkerGauges) -> None:
        """What its newest heartbeat says."""
        self.gauges = gauges
        self.num_pages_shared = gauges.shared_pages

    @property
    def num_pages_needed(self) -> int:
        """Pages of all its requests, those that they share counted once."""
        return max(0, self.num_pages_assigned - self.num_pages_shared)

    @property
    def free_pages(self) -> int:
        """Pages beside those of its requests."""
        return self.hello.memory.pools.num_pages - self.num_pages_needed
