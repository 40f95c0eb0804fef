"""The contract between the HTTP edge and the serving core.

The edge (http/) turns an HTTP request into one ``SequenceRequest`` per choice; the core (hub.py)
turns each into tokens. Neither imports the other's files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct

from coordinator.record.record import RequestRecord
from coordinator.record.stored_response import StoredResponse
from transport.wire.reports import LogprobsOut
from transport.wire.sampling import FinishReason, SamplingParams, StopRule
from transport.wire.token_ids import TokenIds

_PROMPT_LOGPROB = 25  # 8 bytes on the wire, some 90 in an answer


@dataclass(frozen=True)
class SequenceRequest:
    """One sequence to generate."""

    request_id: str
    """Unique among all requests that were ever accepted."""
    prompt_ids: TokenIds
    sampling: SamplingParams
    stop: StopRule
    http_id: str = ""
    """The X-Request-Id of the HTTP request that it belongs to."""
    streamed: bool = True
    """True if tokens are sent as they arrive; otherwise they are held until the last one."""
    key: str = ""
    """The name of the API key that it is charged to."""
    weight: int = 1
    """The weight of the key, among the keys that wait for the same workers."""
    priority: int = 0
    """The priority of the key: higher ones go first."""
    salt: str = ""
    """Prefixes are shared only between requests with the same salt."""
    boundaries: tuple[int, ...] = ()
    """Numbers of prompt tokens, ascending, after which later prompts are likely to differ."""
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    """The times that it shall keep where the pools follow the load, if they are longer than the
    service's."""

    @property
    def num_scored(self) -> int:
        """Prompt tokens whose log-probabilities the client asked for."""
        return 0 if self.sampling.prompt_logprobs is None else len(self.prompt_ids) - 1

    @property
    def num_held(self) -> int:
        """Tokens that it holds until its end, as open_tokens.py counts them."""
        num_each = 1 + (self.sampling.prompt_logprobs or 0)
        return len(self.prompt_ids) + self.num_scored * num_each * _PROMPT_LOGPROB


class Token(Struct, frozen=True):
    """One output token. A stream yields each token once, in order."""

    token_id: int
    logprobs: LogprobsOut | None = None
    finish: FinishReason | None = None
    """Set on the last token only."""
    prompt_logprobs: tuple[bytes, ...] = ()
    """Set on the first token if the request asks for it: rows of transport/wire/prompt_logprobs.py
    for all prompt tokens but the first."""
    num_reused: int = 0
    """Set on the first token: prompt tokens that came from the prefix cache."""


BreakerState = Literal["closed", "open", "half-open"]
SpreadMode = Literal["spread", "local", "alone", "left out"]


@dataclass(frozen=True)
class SpreadStatus:
    """A worker's part in decode steps that workers compute together, over the last minute. Times in
    ms are per step."""

    mode: SpreadMode
    """"spread": its group computes steps together; "local": not at present; "alone": it has no
    group; "left out": it slows the others down, and is in no group for ``left_out_s``."""
    members: tuple[str, ...]
    """The members of its group, including itself."""
    share: float | None
    """The share of its steps that were spread; None without steps."""
    step_ms: float | None
    local_step_ms: float | None
    aborted: int
    """Spread steps that were taken back."""
    wait_ms: dict[str, float]
    """By other member: how long its host waited for that member before a spread step."""
    within_ms: dict[str, float]
    """By other member: how long its device waited for that member within a spread step."""
    saved_ms: float | None
    """How much longer a spread step would take with one member less, by the worker's table."""
    late: dict[str, int]
    """By other member: how often it waited for that member in vain."""
    left_out_s: float
    table: str = ""
    """Where the step times are from by which it decides when steps are spread: "measured here",
    "shipped", "estimated" or "file"; "" for a worker that does not decide: it has no group, or
    lends."""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker, as its last heartbeat reported."""

    instance: str
    role: str
    device: str
    running: int
    waiting: int
    free_pages: int
    num_pages: int
    free_state_slots: int
    num_state_slots: int
    accounting_error: str
    """Empty while its cache accounting is right."""
    draining: bool = False
    """True if it takes no new work."""
    gpu_temperature_c: float | None = None
    breaker: BreakerState = "closed"
    """"closed": takes requests; "open": had too many faults and takes none; "half-open": one
    request probes it."""
    prompt_tokens_per_s: float = 0.0
    """Tokens of computed prompts, over the last seconds (TokenMeter)."""
    output_tokens_per_s: float = 0.0
    drafts: int = 0
    """Drafts that a decode step makes for each sequence now."""
    tokens_per_step: float | None = None
    """Tokens that a step gave a sequence, over the last seconds; None without steps."""
    draft_acceptance: tuple[float, ...] = ()
    """The share of drafts that were accepted, by position, over the last seconds."""
    given_acceptance: float | None = None
    """In a benchmark with random weights, the probability with which it accepts drafts, whatever
    the model chooses; None where drafts are verified."""
    queried_tokens: int = 0
    """Prompt tokens that were looked up in the prefix cache, over the last minute."""
    reused_tokens: int = 0
    """Prompt tokens that were found there, over the last minute."""
    kept_prefixes: int = 0
    """Prefixes kept on its device now."""
    kept_prefixes_host: int = 0
    """Prefixes kept in its host tier now."""
    pid: int = 0
    """Process id, in the namespace of the machine."""
    prompts_waiting: int = 0
    """How many of the ``waiting`` ones wait for their prompts to be computed here."""
    spread: SpreadStatus | None = None
    """None for a worker that does not offer to compute steps together with others."""


@dataclass(frozen=True)
class ServiceStatus:
    """The state of the service."""

    ready: bool
    """True if requests are accepted."""
    problems: tuple[str, ...]
    """Why requests are not accepted, or what is wrong although they are: decode workers compute
    prompts, a slow worker is left out of spread steps, or drafts are accepted with a given
    probability."""
    draining: bool
    queued: int
    running: int
    redis_connected: bool
    workers: tuple[WorkerStatus, ...] = field(default=())
    pools_why: str = ""
    """Why the pools changed last, where they follow the load; "" before."""
    moves_last_minute: int = 0
    """Requests that another worker went on decoding."""

    @property
    def prompts_waiting(self) -> int:
        """Requests whose prompts wait, at the coordinator or at a worker of any role."""
        return self.queued + sum(each.prompts_waiting for each in self.workers)


class LoadPoint(Struct, frozen=True):
    """The load in one period. Latencies are None if nothing was measured in it."""

    output_tokens_per_s: float
    prompt_tokens_per_s: float
    """Tokens of prompts, cached ones included, at the first token of each."""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    queued: int
    """The most prompts that waited at once, at the coordinator or at a worker."""
    running: int
    """The most requests that were at workers at once."""
    handoffs_per_s: float
    handoff_p50_s: float | None
    """From a request's first token to its second."""
    handoff_bytes_per_s: float


class LoadSeries(Struct, frozen=True):
    """The load of the last hour: a point for each period of ``period_s`` that is over, the oldest
    first. ``started_at``: Unix seconds at which the oldest period began."""

    period_s: int
    started_at: float
    points: tuple[LoadPoint, ...]


class PoolChange(Struct, frozen=True):
    """A change of the pools that is done."""

    prefill: int
    decode: int
    workers: dict[str, str]
    """The role of each worker now."""
    changed: dict[str, str]
    """The roles before and after, of each worker that changed."""
    num_moved: int
    """Sequences that left workers that decode no more."""
    num_left: int
    """Sequences that are decoded there yet, without room elsewhere."""


class PoolsSuperseded(Exception):
    """Other pools were asked for before a change of the pools was done."""


class GenerationFailed(Exception):
    """Raised by a stream whose request failed. ``code`` is stable; the message is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Overloaded(Exception):
    """Not accepted: the queue is full, the first workers have not joined yet, or (``code``
    "draining") the coordinator is about to stop. Try again after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: float, code: str = "overloaded") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code


class TokenStream(Protocol):
    """The tokens of one accepted request, as they arrive. End it in one of three ways: exhaust it,
    ``stop_early`` (a stop string was found: finished) or ``cancel`` (the client disconnected:
    cancelled). Both methods are no-ops once the request has ended."""

    def __aiter__(self) -> "TokenStream": ...

    async def __anext__(self) -> Token:
        """Raises GenerationFailed, or StopAsyncIteration after the last token."""
        ...

    def stop_early(self) -> None: ...

    def cancel(self) -> None: ...


class History(Protocol):
    """The records of requests. Both methods raise a BatonError, such as RedisUnavailable, if the
    records cannot be read."""

    async def get(self, request_id: str) -> RequestRecord | None:
        """The newest record; None if the request is unknown or ended long ago. Raises
        MalformedMessage if the record is damaged."""
        ...

    async def recent(self, most: int) -> list[RequestRecord]:
        """Records of the newest ``most`` requests, newest first, without damaged records."""
        ...


class StoredResponses(Protocol):
    """The responses that are stored for clients, for a time. ``owner`` is the name of the API key
    that made a response; only requests with that key find it. All methods but ``keep`` raise a
    BatonError if a response cannot be read; ``conversation`` also raises
    ConversationUnavailable."""

    async def keep(self, owner: str, response: StoredResponse) -> bool:
        """Store a response. True if it is stored. Takes a moment at most; does not raise."""
        ...

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """The items of each response of a conversation up to this one, oldest first."""
        ...

    async def bodies(self, owner: str, response_ids: Sequence[str]) -> list[bytes | None]:
        """The bodies of responses; None for one that is not stored."""
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response. True if it was stored until now."""
        ...


class Core(Protocol):
    """The serving core, as the HTTP edge uses it. All calls are made on the event loop's thread."""

    @property
    def max_seq_len(self) -> int | None:
        """Tokens of the longest prompt and output that every live worker can hold; None without
        workers."""
        ...

    @property
    def max_open_tokens(self) -> int:
        """Most tokens that all open responses may hold together."""
        ...

    @property
    def pools_follow(self) -> bool:
        """True if the pools follow the load, so that the times of a request count."""
        ...

    def submit(self, spec: SequenceRequest) -> TokenStream:
        """Accept a request. Raises Overloaded if it is not accepted."""
        ...

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Return once the records of these requests say how they ended. So the end is not lost if
        this process dies after the client has the whole answer. Takes a moment at most, even if
        the records cannot be written; does not raise."""
        ...

    def cut(self, request_ids: Sequence[str]) -> None:
        """Note in the records of ended requests that their client did not get the whole answer."""
        ...

    def status(self) -> ServiceStatus: ...

    async def set_pools(self, prefill: int, decode: int) -> PoolChange:
        """Assign roles so that the pools have these sizes; returns once no prefill worker decodes
        any more, or after PATIENCE_S (pools.py). Raises ValueError for pools that the workers
        cannot form, and PoolsSuperseded if others are asked for meanwhile."""
        ...

    def load_series(self) -> LoadSeries:
        """The load of the last hour."""
        ...

    def num_output(self, request_id: str) -> int | None:
        """How many tokens an open request has put out so far; None if it is not open here."""
        ...
