"""The workers as the coordinator knows them. Pure."""

from dataclasses import dataclass, field
from math import inf

from msgspec import structs

from coordinator.core.breaker import Breaker, BreakerSettings
from coordinator.core.contract import SpreadStatus, WorkerStatus
from coordinator.core.kept_prefixes import ComingPrefixes, KeptPrefixes
from coordinator.core.meters import DraftMeter, PrefixMeter, SpreadMeter, TokenMeter
from coordinator.core.pairs import Pairs
from coordinator.core.request import Request, State
from transport.wire.errors import LayoutMismatch, RoleMismatch
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout
from transport.wire.messages import Hello, Role
from transport.wire.reports import GpuHealth, WorkerGauges
from transport.wire.seen_pages import SeenPages

MAX_SEEN_PAGES = 1 << 17
"""What earlier prompts began with: 8 million tokens, in about 20 MB."""
MAX_PROMPT_PAGES = 512
"""Of each of them: 32,768 tokens, hashed and noted in 0.5 ms."""


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


class Registry:
    """Every live worker, by instance."""

    def __init__(self, breakers: BreakerSettings | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self.breakers = breakers or BreakerSettings()
        self._longest_seen: dict[Role, int] = {}
        self.pairs = Pairs()  # for handoffs
        self.prefix_pairs = Pairs()
        self.spread_pairs = Pairs()
        self.kept = KeptPrefixes(CHUNK_ALIGNMENT)
        self.seen = SeenPages(MAX_SEEN_PAGES, MAX_PROMPT_PAGES)

    def add(self, hello: Hello, now: float) -> Worker:
        size = hello.memory.pools
        gauges = WorkerGauges(free_pages=size.num_pages, free_state_slots=size.num_state_slots)
        worker = Worker(hello, gauges, now, breaker=Breaker(self.breakers))
        if not self._workers:  # those that join later have the same layout
            self.kept = KeptPrefixes(worker.layout.page_size)
        self._workers[hello.instance] = worker
        longest = max(hello.max_seq_len, self.longest_seen(hello.role))
        self._longest_seen[hello.role] = longest
        return worker

    def remove(self, instance: str) -> Worker | None:
        self.pairs.forget(instance)
        self.prefix_pairs.forget(instance)
        self.spread_pairs.forget(instance)
        self.kept.forget(instance)
        return self._workers.pop(instance, None)

    def get(self, instance: str) -> Worker | None:
        return self._workers.get(instance)

    def require(self, instance: str) -> Worker:
        """A worker that is known to be here."""
        return self._workers[instance]

    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def of(self, role: Role) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.hello.role == role]

    def taking(self, role: Role) -> list[Worker]:
        """Those of a role that take new work."""
        return [worker for worker in self.of(role) if not worker.draining]

    def prefilling(self) -> list[Worker]:
        """Prefill workers from which a decode worker can pull, as far as is known."""
        heard = {worker.instance: worker.heard_at for worker in self.taking("decode")}
        return [w for w in self.of("prefill") if not self.pairs.stranded(w.instance, heard)]

    def standing_in(self) -> bool:
        """Whether decode workers compute prompts: there were prefill workers, and none takes work
        now. Before the first one joins, prompts wait for it."""
        if not self.longest_seen("prefill") or not self.taking("decode"):
            return False
        return all(worker.draining for worker in self.prefilling())

    def decoding_from(self, prefill: str) -> list[Worker]:
        """Decode workers that take new work and read this prefill worker's memory right, or have
        yet to prove it."""
        taking = self.taking("decode")
        return [w for w in taking if prefill not in self.pairs.broken_of(w.instance)]

    def pairs_of(self, puller: Worker) -> Pairs:
        """What is known of the workers that it pulls from."""
        return self.pairs if puller.hello.role == "decode" else self.prefix_pairs

    def may_pull_prefix(self, puller: Worker, instance: str) -> bool:
        """Whether it reads the memory of that worker right, and no faults keep requests away from
        there."""
        keeper = self._workers.get(instance)
        usable = self.pairs_of(puller).usable(instance, puller.instance)
        return usable and keeper is not None and keeper.breaker.closed

    def longest_seen(self, role: Role) -> int:
        """The longest sequence that any worker of the role could hold, gone or not."""
        return self._longest_seen.get(role, 0)

    def holds(self, role: Role, num_tokens: int) -> bool:
        """Whether a worker of the role takes new work and can hold so many tokens."""
        return any(worker.hello.max_seq_len >= num_tokens for worker in self.taking(role))

    def missing_roles(self) -> tuple[Role, ...]:
        """Roles without a worker that takes work; a colocated worker needs no other."""
        taking = {worker.hello.role for worker in self._workers.values() if not worker.draining}
        needed: tuple[Role, ...] = ("colocated",) if self.of("colocated") else ("prefill", "decode")
        return tuple(role for role in needed if role not in taking)

    def silent(self, now: float, dead_after_s: float) -> list[Worker]:
        return [w for w in self._workers.values() if now - w.heard_at > dead_after_s]

    def excuse(self, absent_s: float) -> None:
        """Take back ``absent_s`` of silence, during which this process did not listen."""
        for worker in self._workers.values():
            worker.heard_at += absent_s

    def require_compatible(self, hello: Hello) -> None:
        """Raise LayoutMismatch unless ``hello`` serves what the workers already here serve, and
        RoleMismatch where some are colocated and others not."""
        for worker in self._workers.values():
            if (worker.hello.role == "colocated") != (hello.role == "colocated"):
                raise RoleMismatch(
                    f"role mismatch: {hello.role} at {hello.instance}, {worker.hello.role} at "
                    f"{worker.instance}; colocated and other workers do not mix"
                )
            if worker.hello.model != hello.model:
                raise LayoutMismatch(
                    f"model mismatch: {hello.model} at {hello.instance}, "
                    f"{worker.hello.model} at {worker.instance}; "
                    f"{_advice(worker.layout, hello.memory.layout)}"
                )
            worker.layout.require_same(hello.memory.layout, peer=hello.instance)


def _advice(here: CacheLayout, there: CacheLayout) -> str:
    """What to do about two models that differ: pages have one layer more with the draft layer."""
    num_more = there.num_attention_layers - here.num_attention_layers
    if abs(num_more) == 1 and here == structs.replace(
        there, num_attention_layers=here.num_attention_layers
    ):
        return (
            "only one of them makes drafts: give all workers the same checkpoint and the same "
            "BATON_SPECULATE"
        )
    return "give all workers the same checkpoint and the same BATON_QUANTIZE"
