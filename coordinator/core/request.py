"""One accepted request, from queued to its single terminal state. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from coordinator.core.contract import SequenceRequest, Token
from telemetry.logs import request_fields
from transport.wire.messages import (
    Decode,
    Generate,
    Hello,
    Prefill,
    Prefilled,
    ReusedFrom,
    Role,
    TokenOut,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.prefix import PrefixKeys
from transport.wire.prompt_logprobs import PromptLogprobs, row_bytes
from transport.wire.sampling import FinishReason
from transport.wire.token_ids import TokenIds, packed, to_wire


class State(StrEnum):
    """Where a request stands; the last three are terminal."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    HANDOFF = "handoff"
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


class Clocks(NamedTuple):
    """The two clocks of a request's times: ``unix`` for its record, in Unix seconds, and
    ``monotonic`` for decisions, in seconds that no step of the system clock disturbs."""

    unix: Callable[[], float]
    monotonic: Callable[[], float]


@dataclass(eq=False)
class Request:
    """One accepted request. ``accepted_at``, ``assigned_at``, ``prefill_assigned_at`` and
    ``progress_at`` are monotonic times; ``stages`` are Unix times."""

    spec: SequenceRequest
    arrival: int
    state: State = State.QUEUED
    attempt: int = 0
    """How often it was queued, from 1."""
    faults: int = 0
    """Attempts that ended in a fault, other than a lack of memory or the loss of a worker."""
    prefill_worker: str = ""
    decode_worker: str = ""
    failed_at: str = ""
    """The worker at which the previous attempt failed."""
    failed_with: set[str] = field(default_factory=set)
    """The codes of all failures."""
    avoided: set[str] = field(default_factory=set)
    """Workers at which it had faults."""
    decoded: bool = False
    """True if a token was decoded in this attempt."""
    made_room: State | None = None
    """The state in which other keys' requests made room for it: once in each."""
    rank: int = 0
    """Orders it among the requests of its worker."""
    losses: int = 0
    """Workers that were lost while they had it."""
    deaths: int = 0
    """Workers that died while they ran it, as requests/quarantine.py counts them."""
    died_at: set[str] = field(default_factory=set)
    """The instances of the workers that ``deaths`` counts."""
    died_at_len: int = 0
    """The number of tokens it had at the last of these deaths."""
    quarantined: bool = False
    """True while it is placed only at workers that compute nothing else."""
    too_long_for: Role | None = None
    """A role with a worker that could not hold it."""
    needs_len: int = 0
    """Tokens that a worker of the role ``too_long_for`` must hold."""
    accepted_at: float = 0.0
    assigned_at: float = 0.0
    """When it was assigned to its newest worker."""
    prefill_assigned_at: float = 0.0
    progress_at: float = 0.0
    offer: Offer | None = None
    """Set while the worker that computed the prompt, or decoded it, keeps its cache for another."""
    moving: bool = False
    """True from the order to move until another worker has pulled it, or it stays where it is."""
    moved_at: float = -inf
    """When it was last ordered to move."""
    stayed_at: float = -inf
    """When it last stayed where it was instead of moving."""
    move_reason: str = ""
    """Why (requests/moves.py)."""
    num_moves: int = 0
    """How often another worker has gone on with it without computing anything again."""
    moves_before: int = 0
    """How many of these were in earlier attempts."""
    output_ids: TokenIds = field(default_factory=packed)
    prompt_rows: list[bytes] = field(default_factory=list)
    """Log-probabilities of the prompt that wait for the first token."""
    num_scored: int = 0
    """Prompt tokens whose log-probabilities arrived, over all attempts."""
    num_reused: int = 0
    """Prompt tokens that the attempt with the first token did not compute."""
    reused: ReusedFrom = ""
    """Where the reused tokens came from."""
    num_expected: int = 0
    """Tokens that the newest attempt was expected to reuse."""
    prefix_from: str = ""
    """The worker that the newest attempt was to pull them from, if any."""
    branch: int = 0
    """An earlier prompt began with the same tokens, so many of them."""
    bytes_moved: int = 0
    """Bytes of all attempts' handoffs."""
    handoff_bytes: int = 0
    """Bytes of the newest attempt's handoff."""
    drafts_verified: int = 0
    drafts_accepted: int = 0
    """Drafts of all attempts."""
    finish_reason: FinishReason | None = None
    code: str = ""
    message: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    """Times of the newest attempt, by the names of record.py: Unix seconds (``…_at``) and durations
    (``…_s``). ``received_at`` and ``first_token_at`` are the request's own."""
    revision: int = 0
    """Counts changes of the record."""
    _keys: PrefixKeys | None = None
    """Keys of the prefixes of this attempt's tokens."""

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def token_ids(self) -> TokenIds:
        return self.spec.prompt_ids + self.output_ids

    @property
    def num_tokens(self) -> int:
        return len(self.spec.prompt_ids) + len(self.output_ids)

    @property
    def shares_prefixes(self) -> bool:
        """True if it may reuse what was computed for other requests. The log-probabilities of a
        prompt need all of it computed."""
        return self.spec.sampling.prompt_logprobs is None

    @property
    def salt(self) -> str:
        """Limits which requests it shares prefixes with: none, after NaN and in quarantine, because
        a kept prefix may be the cause."""
        alone = self.quarantined or "not_finite" in self.failed_with
        return f"{self.spec.salt} {self.request_id}" if alone else self.spec.salt

    def prefix_keys(self, hello: Hello) -> PrefixKeys:
        """Keys of the prefixes of its tokens, at workers that serve the same as ``hello``."""
        if self._keys is None:
            page_size = hello.memory.layout.page_size
            self._keys = PrefixKeys(hello.model, self.salt, self.token_ids, page_size)
        return self._keys

    @property
    def waiting(self) -> bool:
        """True while it waits to be placed at a worker."""
        unplaced_handoff = self.state is State.HANDOFF and not self.decode_worker
        return self.state is State.QUEUED or unplaced_handoff

    @property
    def troubled(self) -> bool:
        """True if an attempt has failed. Such a request is not used as a probe."""
        return self.attempt > 1 or self.faults > 0

    def placed_at(self, instance: str) -> float:
        """When it was placed at a worker, which has it now or had it last."""
        at_prefill = instance == self.prefill_worker
        return self.prefill_assigned_at if at_prefill else self.assigned_at

    @property
    def max_len(self) -> int:
        """Tokens of prompt and output, unless a stop token ends it earlier."""
        return len(self.spec.prompt_ids) + self.spec.stop.max_tokens

    @property
    def answer_s(self) -> float | None:
        """Seconds from the first to the last token of an answer of several tokens; None before its
        end."""
        first_at, ended_at = map(self.stages.get, ("first_token_at", "ended_at"))
        if first_at is None or ended_at is None or len(self.output_ids) < 2:
            return None
        return ended_at - first_at

    @property
    def was_handed_off(self) -> bool:
        """True if its prompt was computed by another worker than its answer."""
        return self.decode_worker not in ("", self.prefill_worker)

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields that say in a log line which request it is about."""
        return request_fields(self.spec.http_id, self.request_id, self.attempt)

    @property
    def has_moved(self) -> bool:
        """True if it has moved in this attempt."""
        return self.num_moves > self.moves_before

    def begin_attempt(self, now: float) -> None:
        """Reset what belongs to one attempt: the request is queued."""
        self.attempt += 1
        self.rank = self.arrival
        self.made_room = None
        self.state = State.QUEUED
        self.prefill_worker = self.decode_worker = ""
        kept = ("received_at", "first_token_at")
        self.stages = {name: at for name, at in self.stages.items() if name in kept}
        self.stages["queued_at"] = now
        self.handoff_bytes = self.num_expected = 0
        self.decoded = self.moving = False
        self.moves_before = self.num_moves
        self._keys = None

    def take_prompt_rows(self, message: PromptLogprobs) -> bool:
        """Store the next log-probabilities of the prompt. Returns False for others: they are
        stale."""
        if message.start != self.num_scored + 1:
            return False
        num_top = self.spec.sampling.prompt_logprobs
        assert num_top is not None, "checked by the inbox"
        self.prompt_rows.append(message.rows)
        self.num_scored += len(message.rows) // row_bytes(num_top)
        return True

    def take_token(self, token: TokenOut) -> Token:
        """Store the next output token. Returns it as it is streamed: the first one with what is
        known of the prompt."""
        num_reused = 0 if self.output_ids else self.num_reused
        self.output_ids.append(token.token_id)
        verified, accepted = token.drafts
        self.drafts_verified += verified
        self.drafts_accepted += accepted
        rows = tuple(self.prompt_rows)
        self.prompt_rows.clear()
        return Token(token.token_id, token.logprobs, token.finish, rows, num_reused)

    def forget_prefix_keys(self) -> None:
        """The request is where it is decoded: its keys, which are as large as the prompt, are not
        looked up again."""
        self._keys = None

    def was_prefilled(self, message: Prefilled, now: float) -> None:
        """Store how long its prefill took. Call it before the message's token is counted."""
        if not self.output_ids:
            self.num_reused, self.reused = message.num_reused, message.reused
        self.stages |= {
            "prefilled_at": now,
            "prefill_wait_s": message.wait_s,
            "prefill_s": message.prefill_s,
        }

    def transfer_done(self, message: TransferDone, now: float) -> None:
        """Store how long its handoff took so far; of a move only the bytes."""
        self.bytes_moved += message.num_bytes
        if self.moving:
            return
        self.handoff_bytes = message.num_bytes
        self.stages |= {
            "transferred_at": now,
            "in_socket_s": message.in_socket_s,
            "wait_memory_s": message.wait_memory_s,
            "launch_s": message.launch_s,
            "copy_s": message.copy_s,
            "boundary_s": message.boundary_s,
        }

    def as_prefill(self, prefix: Offer | None = None) -> Prefill:
        """The order to compute its tokens, including the output tokens already sent."""
        return Prefill(**self._order(), prefix=prefix)

    def as_generate(self, prefix: Offer | None = None) -> Generate:
        """The order to compute its tokens and to continue at the same worker."""
        return Generate(**self._order(), prefix=prefix)

    def as_decode(self) -> Decode:
        """The order to pull its offer and to continue."""
        assert self.offer is not None, "handed off without an offer"
        return Decode(**self._order(), offer=self.offer)

    def _order(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "request_id": self.request_id,
            "attempt": self.attempt,
            "arrival": self.rank,
            "token_ids": to_wire(self.token_ids),
            "num_prompt": len(spec.prompt_ids),
            "sampling": spec.sampling,
            "stop": spec.stop,
            "http_id": spec.http_id,
            "num_scored": self.num_scored,
            "salt": self.salt,
            "boundaries": tuple(sorted({*spec.boundaries, self.branch} - {0})),
        }
