"""One worker as the coordinator knows it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from coordinator.core.contract import SpreadStatus, WorkerStatus
from coordinator.core.request import Request, State
from coordinator.core.workers.breaker import Breaker
from coordinator.core.workers.load import Load
from coordinator.core.workers.meters import DraftMeter, PrefixMeter, SpreadMeter, TokenMeter
from coordinator.core.workers.prompt_meter import PromptMeter
from coordinator.core.workers.step_clock import StepClock
from transport.wire.layout import CacheLayout
from transport.wire.messages import Heartbeat, Hello, Role, TokenOut
from transport.wire.reports import GpuHealth, WorkerGauges

Departure = Literal["silent", "goodbye", "rejoined", "refused"]
"""Why a worker is gone."""


@dataclass(eq=False)
class Worker:
    """One worker that was welcomed. Times are of the monotonic clock: a step of the system clock
    must not look like silence."""

    hello: Hello
    gauges: WorkerGauges
    heard_at: float
    breaker: Breaker
    """Says whether the worker's faults keep requests away."""
    role: Role = field(init=False)
    """The present role: that of the hello, until another one is assigned."""
    draining: bool = False
    drains_since: float = -inf
    """When it said that it drains."""
    short_seen_at: float = -inf
    """When it was last looked whether its sequences, which run out of pages, can move."""
    dismissed: bool = False
    """True once a draining worker was told that it may end."""
    settled: bool = False
    """True once the worker has sent more than its hello."""
    keeps_prefixes: bool = False
    """True once the worker has said which prefixes of earlier requests it keeps."""
    beats: tuple[float, float] = (-inf, -inf)
    """When its last two heartbeats arrived, as ``note_beat`` counts them."""
    gpu: GpuHealth | None = None
    """The last report of its GPU, as far as the GPU can be asked."""
    prompt_tokens: TokenMeter = field(default_factory=TokenMeter)
    output_tokens: TokenMeter = field(default_factory=TokenMeter)
    """Computed tokens that the worker reported, stale or not."""
    steps: StepClock = field(default_factory=StepClock)
    prompts: PromptMeter = field(default_factory=PromptMeter)
    num_prompt_tokens: int = 0
    """Prompt tokens that it has computed."""
    drafts: DraftMeter = field(default_factory=DraftMeter)
    prefixes: PrefixMeter = field(default_factory=PrefixMeter)
    spread: SpreadMeter = field(default_factory=SpreadMeter)
    malformed_dropped: int = 0
    """Messages that the worker could not read."""
    unconfirmed: dict[str, float] = field(default_factory=dict)
    """Requests that gave NaN here and were not tried elsewhere yet, by when that was."""
    reserved_for: Request | None = None
    """If set, only this request is placed here."""
    load: Load = field(init=False)

    def __post_init__(self) -> None:
        self.role = self.hello.role
        self.load = Load(self.hello)

    @property
    def instance(self) -> str:
        return self.hello.instance

    def can_be(self, role: Role) -> bool:
        """True if the worker has this role, or may be assigned it."""
        return role in self.hello.roles

    @property
    def num_decoded(self) -> int:
        """Sequences that are decoded here, or on their way here."""
        return sum(
            request.decode_worker == self.instance
            and request.state in (State.DECODING, State.HANDOFF)
            for request in self.load.requests.values()
        )

    @property
    def layout(self) -> CacheLayout:
        return self.hello.memory.layout

    @property
    def kept_bytes(self) -> int:
        """Bytes of its pages and state slots that only kept prefixes hold."""
        held, layout = self.gauges.prefix, self.layout
        return held.pages_kept * layout.page_bytes + held.num_kept * layout.state_slot_bytes

    def take_heartbeat(self, message: Heartbeat) -> None:
        """Store what a heartbeat that has just arrived reports."""
        self.take_gauges(message.gauges)
        self.gpu = message.gpu
        self.malformed_dropped = message.malformed_dropped
        self.prompts.note_batches(message.gauges.prompts)
        self.drafts.note(message.gauges.drafts, self.heard_at)
        self.prefixes.note(message.gauges.prefix, self.heard_at)
        self.spread.note(message.gauges.spread, self.heard_at)

    def take_gauges(self, gauges: WorkerGauges) -> None:
        self.gauges = gauges
        self.load.num_pages_shared = gauges.shared_pages

    def note_prompt(self, num_computed: int, num_prompt: int, assigned_at: float) -> None:
        """Count a prompt that the worker has just reported as computed."""
        self.prompt_tokens.add(num_computed, self.heard_at)
        alone = not self.num_decoded
        self.prompts.ended(num_computed, num_prompt, assigned_at, self.heard_at, alone=alone)
        self.num_prompt_tokens += num_computed

    def note_step(self, tokens: Sequence[TokenOut], now: float) -> None:
        """Count the tokens of a decode step that the worker has reported."""
        self.output_tokens.add(len(tokens), now)
        drafted = self.drafts.num_drafts
        number = len({token.request_id for token in tokens}) if drafted else len(tokens)
        self.steps.note(
            number, len(tokens), now,
            num_prompt=self.num_prompt_tokens, has_prompts=self.load.tokens_ahead > 0,
            goes_on=any(map(self._decodes, self.load.requests.values())),
        )  # fmt: skip

    def _decodes(self, request: Request) -> bool:
        return request.state is State.DECODING and request.decode_worker == self.instance

    def note_beat(self, now: float, heartbeat_s: float) -> None:
        """Count a heartbeat. Heartbeats that queued up while this process did not listen count as
        one."""
        if now - self.beats[1] >= heartbeat_s / 2:
            self.beats = self.beats[1], now

    def status(self, now: float, spread: SpreadStatus | None = None) -> WorkerStatus:
        """The worker as ``/status`` shows it. ``spread`` is the status of its part in spread
        groups."""
        pools, prefixes = self.hello.memory.pools, self.prefixes.recent
        return WorkerStatus(
            instance=self.instance,
            role=self.role,
            device=self.hello.device,
            pid=self.hello.pid,
            running=self.gauges.running,
            waiting=self.gauges.waiting,
            prompts_waiting=min(self.gauges.waiting, self.load.num_prompts),
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
            given_acceptance=self.hello.draft_acceptance,
            queried_tokens=prefixes.queried,
            reused_tokens=prefixes.reused_gpu + prefixes.reused_host + prefixes.reused_peer,
            kept_prefixes=prefixes.num_kept,
            kept_prefixes_host=prefixes.num_kept_host,
            spread=spread,
        )


def are_pair(workers: Sequence[Worker]) -> bool:
    """True if these are two workers that compute their steps together (docs/spread.md)."""
    return len(workers) == 2 and all(worker.spread.in_pair for worker in workers)
