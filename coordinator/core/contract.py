"""What the HTTP edge asks of the serving core, and what it gets back.

The edge (http/) turns an HTTP request into one ``SequenceRequest`` per choice; the core (hub.py)
turns each into tokens. Neither knows the other's insides.
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
    """One sequence to generate. ``request_id`` is unique among all that were ever accepted;
    ``http_id`` is the X-Request-Id of the HTTP request it belongs to. ``streamed``: its tokens
    are sent as they come, else they are held until the last one. ``key`` is the name of the API key
    that it is charged to. Prefixes are shared only between requests of the same ``salt``.
    ``boundaries``: after so many tokens of the prompt, ascending, later prompts are likely to go on
    otherwise."""

    request_id: str
    prompt_ids: TokenIds
    sampling: SamplingParams
    stop: StopRule
    http_id: str = ""
    streamed: bool = True
    key: str = ""
    salt: str = ""
    boundaries: tuple[int, ...] = ()

    @property
    def num_scored(self) -> int:
        """Tokens of the prompt whose log-probabilities are asked for."""
        return 0 if self.sampling.prompt_logprobs is None else len(self.prompt_ids) - 1

    @property
    def num_held(self) -> int:
        """What it holds until its end, in tokens as streams.py counts them."""
        num_each = 1 + (self.sampling.prompt_logprobs or 0)
        return len(self.prompt_ids) + self.num_scored * num_each * _PROMPT_LOGPROB


class Token(Struct, frozen=True):
    """One output token, in order, exactly once. ``finish`` is set on the last one only.
    ``prompt_logprobs`` comes with the first one where the request asks for it: rows of
    transport/wire/prompt_logprobs.py for all tokens of the prompt but the first. ``num_reused``, of
    the first token: so many tokens of the prompt came from the prefix cache."""

    token_id: int
    logprobs: LogprobsOut | None = None
    finish: FinishReason | None = None
    prompt_logprobs: tuple[bytes, ...] = ()
    num_reused: int = 0


BreakerState = Literal["closed", "open", "half-open"]
SpreadMode = Literal["spread", "local", "alone", "left out"]


@dataclass(frozen=True)
class SpreadStatus:
    """What a worker does of decode steps that are computed together with others. ``mode``: its
    group computes them together ("spread") or not at present ("local"); it has no group ("alone");
    it slows the others down, and is left out for ``left_out_s`` ("left out"). ``members`` are those
    of its group, itself among them.

    Of the last minute: the share of its steps that were spread, None without steps; how long a
    spread and a local one took; how often steps were taken back (``aborted``); and by other member
    how long in each spread step its host waited for it (``wait_ms``) and its device
    (``within_ms``), and how often it waited in vain (``late``). ``saved_ms``: how much longer a
    spread step would take with one member less, by the table of the worker."""

    mode: SpreadMode
    members: tuple[str, ...]
    share: float | None
    step_ms: float | None
    local_step_ms: float | None
    aborted: int
    wait_ms: dict[str, float]
    within_ms: dict[str, float]
    saved_ms: float | None
    late: dict[str, int]
    left_out_s: float


@dataclass(frozen=True)
class WorkerStatus:
    """One worker as its last heartbeat told. ``accounting_error`` is empty while its cache
    accounting is right; ``draining``: it takes no new work. ``breaker`` is "closed" for a worker
    that takes requests, "open" for one that took too many faults and takes none, and "half-open"
    while one request probes it. Tokens a second are over the last seconds (TokenMeter): of prompts
    when they are done, and of output. ``drafts`` is how many a decode step makes for each sequence
    now. Of the last seconds: the tokens that a step gave a sequence, None without steps; and the
    share of drafts accepted, by position. Of the last minute: the tokens of prompts that were
    looked up in the prefix cache, and those of them found. ``kept_prefixes`` are on its device now,
    ``kept_prefixes_host`` in its host tier. ``spread`` is None for a worker that does not offer to
    compute steps together with others."""

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
    draining: bool = False
    gpu_temperature_c: float | None = None
    breaker: BreakerState = "closed"
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    drafts: int = 0
    tokens_per_step: float | None = None
    draft_acceptance: tuple[float, ...] = ()
    queried_tokens: int = 0
    reused_tokens: int = 0
    kept_prefixes: int = 0
    kept_prefixes_host: int = 0
    spread: SpreadStatus | None = None


@dataclass(frozen=True)
class ServiceStatus:
    """``ready``: work is taken. ``problems`` says why it is not, or what is wrong although it is:
    ``no live prefill worker`` where decode workers compute prompts meanwhile, or the worker that is
    left out of spread steps because it is slow."""

    ready: bool
    problems: tuple[str, ...]
    draining: bool
    queued: int
    running: int
    redis_connected: bool
    workers: tuple[WorkerStatus, ...] = field(default=())


class GenerationFailed(Exception):
    """The request ended in ``failed``; ``code`` is stable, the message is for people."""

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
    """The tokens of one accepted request, as they come; end it by exactly one of the three:
    exhaust it, ``stop_early`` (a stop string was found: finished) or ``cancel`` (the client
    left: cancelled). Both are no-ops once it has ended."""

    def __aiter__(self) -> "TokenStream": ...

    async def __anext__(self) -> Token:
        """Raises GenerationFailed, or StopAsyncIteration after the last token."""
        ...

    def stop_early(self) -> None: ...

    def cancel(self) -> None: ...


class History(Protocol):
    """The record of requests, as the edge sees it; both raise a BatonError when the record
    cannot be read, RedisUnavailable among them."""

    async def get(self, request_id: str) -> RequestRecord | None:
        """The newest record; None when the request is unknown or long over. Raises
        MalformedMessage when it is damaged."""
        ...

    async def recent(self, most: int) -> list[RequestRecord]:
        """Of the requests received last, last one first; without those that are damaged."""
        ...


class StoredResponses(Protocol):
    """The responses that are stored for clients, for a time. ``owner`` is the API key that made a
    response, and only with it the response is found. All but ``keep`` raise a BatonError when what
    is stored cannot be read; ``conversation`` raises ConversationUnavailable too."""

    async def keep(self, owner: str, response: StoredResponse) -> bool:
        """Store it, and say whether that went well. Takes a moment at most; does not raise."""
        ...

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """The items of each response up to this one, the oldest first."""
        ...

    async def bodies(self, owner: str, response_ids: Sequence[str]) -> list[bytes | None]:
        """None for a response that is not stored."""
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Whether it was stored until now."""
        ...


class Core(Protocol):
    """The serving core, as the edge sees it; all on the event loop's thread."""

    @property
    def max_seq_len(self) -> int | None:
        """Longest prompt + output that every live worker can hold; None while there is no
        worker."""
        ...

    @property
    def max_open_tokens(self) -> int:
        """Most tokens that all open responses may hold."""
        ...

    def submit(self, spec: SequenceRequest) -> TokenStream:
        """Accept a request; raises Overloaded when it is not accepted."""
        ...

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Return once the record tells how these requests ended, so that it is not lost if
        this process dies after their client has the whole answer. Takes a moment at most, also
        where the record cannot be written; does not raise."""
        ...

    def cut(self, request_ids: Sequence[str]) -> None:
        """Note of those that have ended that their client did not get the answer whole."""
        ...

    def status(self) -> ServiceStatus: ...
