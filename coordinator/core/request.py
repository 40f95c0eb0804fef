"""One accepted request, from queued to its single terminal state. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from coordinator.core.contract import SequenceRequest
from telemetry.logs import request_fields
from transport.wire.messages import (
    Decode,
    Generate,
    Hello,
    Prefill,
    Prefilled,
    ReusedFrom,
    Role,
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


@dataclass(eq=False)
class Request:
    """``attempt`` counts from 1 how often it was queued; ``faults`` the attempts that ended in a
    fault rather than for want of memory or with its worker, ``failed_with`` their codes.
    ``failed_at`` is the worker that gave up the attempt before, ``avoided`` are those that it had
    faults at. ``proved``: a token was decoded in this attempt. ``offer`` is set while a prefill
    worker keeps the finished prompt. ``stages`` are the newest attempt's, by the names of
    record.py: Unix seconds of the coordinator's clock (``…_at``) and durations (``…_s``); but
    ``received_at`` and ``first_token_at`` are the request's own. ``bytes_moved`` are all attempts',
    ``handoff_bytes`` the newest one's, ``drafts_verified`` and ``drafts_accepted`` all attempts'.
    ``revision`` counts changes. ``accepted_at``, ``assigned_at`` (to the newest worker),
    ``prefill_assigned_at`` and ``progress_at`` are of the monotonic clock.

    ``prompt_rows`` are the log-probabilities of the prompt that wait for the first token, and
    ``num_scored`` the tokens that have theirs, over all attempts. The attempt that gave the first
    token ``reused`` the first ``num_reused`` tokens of the prompt from there. The newest one was
    expected to reuse ``num_expected``, perhaps pulled from ``prefix_from``. An earlier prompt began
    with the same ``branch`` tokens.

    ``losses`` are the workers lost while they had it. ``deaths`` to ``suspect`` are of
    trials.py. ``too_long_for`` is a role with a worker that could not hold it, ``needs_len`` the
    tokens that one must hold.
    """

    spec: SequenceRequest
    arrival: int
    state: State = State.QUEUED
    attempt: int = 0
    faults: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""
    failed_at: str = ""
    failed_with: set[str] = field(default_factory=set)
    avoided: set[str] = field(default_factory=set)
    proved: bool = False
    losses: int = 0
    deaths: int = 0
    died_at_len: int = 0
    suspect: bool = False
    too_long_for: Role | None = None
    needs_len: int = 0
    accepted_at: float = 0.0
    assigned_at: float = 0.0
    prefill_assigned_at: float = 0.0
    progress_at: float = 0.0
    offer: Offer | None = None
    output_ids: TokenIds = field(default_factory=packed)
    prompt_rows: list[bytes] = field(default_factory=list)
    num_scored: int = 0
    num_reused: int = 0
    reused: ReusedFrom = ""
    num_expected: int = 0
    prefix_from: str = ""
    branch: int = 0
    bytes_moved: int = 0
    handoff_bytes: int = 0
    drafts_verified: int = 0
    drafts_accepted: int = 0
    finish_reason: FinishReason | None = None
    code: str = ""
    message: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    revision: int = 0
    _keys: PrefixKeys | None = None  # of this attempt's tokens

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
        """Whether it may reuse what was computed for others: the log-probabilities of a prompt need
        all of it computed."""
        return self.spec.sampling.prompt_logprobs is None

    @property
    def salt(self) -> str:
        """After NaN, and as a suspect, it shares prefixes with no other request: a kept prefix may
        be the cause."""
        alone = self.suspect or "not_finite" in self.failed_with
        return f"{self.spec.salt} {self.request_id}" if alone else self.spec.salt

    def prefix_keys(self, hello: Hello) -> PrefixKeys:
        """The keys of its tokens' prefixes, at the workers that serve as this one does."""
        if self._keys is None:
            page_size = hello.memory.layout.page_size
            self._keys = PrefixKeys(hello.model, self.salt, self.token_ids, page_size)
        return self._keys

    @property
    def waiting(self) -> bool:
        """Whether it waits for a worker to be placed at."""
        unplaced_handoff = self.state is State.HANDOFF and not self.decode_worker
        return self.state is State.QUEUED or unplaced_handoff

    @property
    def troubled(self) -> bool:
        """Whether an attempt of it has failed; it is no probe of a worker then."""
        return self.attempt > 1 or self.faults > 0

    def placed_at(self, instance: str) -> float:
        """When it was placed at that worker, which has it now or had it last."""
        at_prefill = instance == self.prefill_worker
        return self.prefill_assigned_at if at_prefill else self.assigned_at

    @property
    def max_len(self) -> int:
        """Tokens of prompt and output if it ends by no stop token."""
        return len(self.spec.prompt_ids) + self.spec.stop.max_tokens

    @property
    def log_fields(self) -> dict[str, object]:
        """What says in a log line which request it is about."""
        return request_fields(self.spec.http_id, self.request_id, self.attempt)

    def begin_attempt(self, now: float) -> None:
        """Queue it, anew if it was before."""
        self.attempt += 1
        self.state = State.QUEUED
        self.prefill_worker = self.decode_worker = ""
        kept = ("received_at", "first_token_at")
        self.stages = {name: at for name, at in self.stages.items() if name in kept}
        self.stages["queued_at"] = now
        self.handoff_bytes = self.num_expected = 0
        self.proved = False
        self._keys = None

    def take_prompt_rows(self, message: PromptLogprobs) -> bool:
        """Keep the next log-probabilities of the prompt; False for others, which are stale."""
        if message.start != self.num_scored + 1:
            return False
        num_top = self.spec.sampling.prompt_logprobs
        assert num_top is not None, "checked by the inbox"
        self.prompt_rows.append(message.rows)
        self.num_scored += len(message.rows) // row_bytes(num_top)
        return True

    def forget_prefix_keys(self) -> None:
        """The request is where it is decoded: its keys, which are as large as the prompt, are not
        looked up again."""
        self._keys = None

    def was_prefilled(self, message: Prefilled, now: float) -> None:
        """Note what its prefill took. Called before the message's token is counted."""
        if not self.output_ids:
            self.num_reused, self.reused = message.num_reused, message.reused
        self.stages |= {
            "prefilled_at": now,
            "prefill_wait_s": message.wait_s,
            "prefill_s": message.prefill_s,
        }

    def transfer_done(self, message: TransferDone, now: float) -> None:
        """Note what its handoff took so far."""
        self.handoff_bytes = message.num_bytes
        self.bytes_moved += message.num_bytes
        self.stages |= {
            "transferred_at": now,
            "in_socket_s": message.in_socket_s,
            "wait_memory_s": message.wait_memory_s,
            "launch_s": message.launch_s,
            "copy_s": message.copy_s,
            "boundary_s": message.boundary_s,
        }

    def as_prefill(self, prefix: Offer | None = None) -> Prefill:
        """The order to compute its tokens, those already sent included."""
        return Prefill(**self._order(), prefix=prefix)

    def as_generate(self, prefix: Offer | None = None) -> Generate:
        """The order to compute its tokens and to go on at the same worker."""
        return Generate(**self._order(), prefix=prefix)

    def as_decode(self) -> Decode:
        """The order to pull its offer and go on."""
        assert self.offer is not None, "handed off without an offer"
        return Decode(**self._order(), offer=self.offer)

    def _order(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "request_id": self.request_id,
            "attempt": self.attempt,
            "arrival": self.arrival,
            "token_ids": to_wire(self.token_ids),
            "num_prompt": len(spec.prompt_ids),
            "sampling": spec.sampling,
            "stop": spec.stop,
            "http_id": spec.http_id,
            "num_scored": self.num_scored,
            "salt": self.salt,
            "boundaries": tuple(sorted({*spec.boundaries, self.branch} - {0})),
        }
