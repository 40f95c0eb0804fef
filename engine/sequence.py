"""A sequence: one attempt of a request on one worker, with its tokens, memory and launched
steps."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.batch import Binding, ForwardBatch, Row, Sampled, Scoring, StepResult
from engine.cache.allocator import CacheAllocation
from engine.cache.kept import KeptPrefix
from engine.sampling.grammars import Compiled
from telemetry.logs import request_fields
from transport.copy.pull import Pull
from transport.wire.messages import (
    Decode,
    Generate,
    Prefill,
    ReusedFrom,
    TokenOut,
)
from transport.wire.offers import Offer, PrefixName
from transport.wire.prefix import PrefixKeys
from transport.wire.reports import LogprobsOut
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import TokenIds, from_wire


@dataclass(frozen=True)
class Beginning:
    """The first ``num_tokens`` tokens of a sequence, which were not computed but ``reused``. They
    are in the sequence's own pages and state slot, or in the kept ``prefix``, which is pinned until
    the first chunk is done."""

    num_tokens: int = 0
    reused: ReusedFrom = ""
    prefix: KeptPrefix | None = None


WHOLE = Beginning()
"""The beginning of a sequence that is computed from its first token."""


@dataclass(eq=False)
class Sequence:
    """Engine-side state of one attempt at one request. Times are this process's monotonic ones.

    After its end a sequence keeps its memory until its launched steps, which write it, have
    retired.
    """

    # The order.
    request_id: str
    attempt: int
    arrival: int
    token_ids: TokenIds
    """Prompt and output, as far as the host knows them."""
    num_prompt: int
    sampling: SamplingParams
    stop: StopRule

    # Its memory and its steps.
    allocation: CacheAllocation | None = None
    num_cached: int = 0
    """Tokens in the cache once every launched step has retired. With drafts a lower bound: each
    step brings one token, and ``drafts_in_flight`` more at most."""
    in_flight: int = 0
    """Launched steps that have not retired."""
    drafts_in_flight: int = 0
    """Drafts in launched steps that have not retired."""
    ended: bool = False
    """True if no further step is launched; at zero ``in_flight`` the allocation is released."""
    received_at: float = 0.0
    started_at: float = 0.0
    """When the first batch was launched."""
    transferred_at: float | None = None
    """When the cache had been pulled; None after the first decode step."""
    http_id: str = ""
    """The client's own id of the request, for the log."""
    hands_off: bool = False
    """True if the cache of the computed prompt is offered, instead of decoded here."""
    num_scored: int = 0
    """Prompt tokens whose log-probabilities were computed in earlier attempts."""
    num_pending: int = 0
    """Last tokens in its pages that its state does not include yet; its next step adds them."""
    bound: bool = False
    """True once it is bound to its state slot: from the first batch here on."""
    finished: bool = False
    """True once the last token is there."""
    moving: bool = False
    """True if it takes only the step that completes its state, and is then offered."""
    compiled: Compiled | None = None
    """The grammar of its output; None without one."""
    compiling: bool = False
    """True while the grammar is being compiled: the sequence takes part in no batch."""

    # The prefix cache.
    salt: str = ""
    """Only sequences with the same salt share prefixes."""
    keys: PrefixKeys | None = None
    """Keys of the tokens that it arrived with; None if nothing may be shared."""
    boundaries: tuple[int, ...] = ()
    """Ascending numbers of tokens after which a later prompt is likely to differ."""
    source: Offer | None = None
    """A prefix of it that a peer keeps."""
    pulling: Pull | None = None
    """The copy of ``source``, while it is under way."""
    awaited: "tuple[Sequence, int] | None" = None
    """The sequence for whose longer prefix it waits, and that prefix's length."""
    beginning: Beginning = WHOLE
    """The prefix that it reuses."""
    num_seen: int = 0
    """Number of its tokens that another prompt begins with."""
    places: list[int] = field(default_factory=list)
    """Numbers of tokens after which its state is kept."""
    making: list[KeptPrefix] = field(default_factory=list)
    """Prefixes that launched chunks and copies write."""
    made: list[KeptPrefix] = field(default_factory=list)
    """Prefixes that it has used and kept."""

    @classmethod
    def of(cls, message: Prefill | Decode | Generate, now: float) -> "Sequence":
        source = None if isinstance(message, Decode) else message.prefix
        return cls(
            message.request_id,
            message.attempt,
            message.arrival,
            from_wire(message.token_ids),
            message.num_prompt,
            message.sampling,
            message.stop,
            received_at=now,
            http_id=message.http_id,
            hands_off=isinstance(message, Prefill),
            num_scored=message.num_scored,
            salt=message.salt,
            boundaries=message.boundaries,
            source=source,
        )

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.attempt

    @property
    def page_holds(self) -> list[list[int] | tuple[int, ...]]:
        """The uses of pages that end with the sequence: its own pages, and the pages of the prefix
        that it began with and of the prefixes that it is making."""
        held = [self.allocation, self.beginning.prefix, *self.making]
        return [each.pages for each in held if each is not None]

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields of a log line that name the request."""
        return request_fields(self.http_id, self.request_id, self.attempt)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def pulled(self) -> PrefixName | None:
        """The prefix, pulled from a peer, that the sequence began with."""
        keys, num_tokens = self.keys, self.beginning.num_tokens
        if keys is None or self.beginning.reused != "peer":
            return None
        return PrefixName(keys.prefix(num_tokens), keys.pages_within(num_tokens), num_tokens)

    def begins_with(self, name: PrefixName, num_tokens: int) -> bool:
        """True if its first ``num_tokens`` tokens are this prefix, or a longer one with it."""
        keys = self.keys
        if keys is None or num_tokens < name.num_tokens:
            return False
        page_keys = keys.pages_up_to(num_tokens // keys.page_size)
        return name.begins(keys.prefix(num_tokens), num_tokens, page_keys)

    def binding(self) -> Binding:
        """The Binding that the engine needs before it samples the sequence's first token here."""
        assert self.allocation is not None, "bound without a state slot"
        return Binding(
            state_slot=self.allocation.slot.id,
            prompt_ids=self.token_ids[: self.num_prompt],
            output_ids=self.token_ids[self.num_prompt :],
            sampling=self.sampling,
            stop=self.stop,
            compiled=self.compiled,
        )

    def scoring(self, start: int, end: int) -> Scoring | None:
        """The log-probabilities that the chunk of tokens ``start`` to ``end`` has to compute."""
        num_top = self.sampling.prompt_logprobs
        first, last = max(start, self.num_scored), min(end, self.num_prompt - 1)
        if num_top is None or first >= last:
            return None
        return Scoring(first - start, self.token_ids[first + 1 : last + 1], num_top)

    def append(self, sampled: Sampled, drafts: tuple[int, int] = (0, 0)) -> TokenOut:
        """Append a sampled token; the result's ``finish`` is set if it was the last one.
        ``drafts``: (verified, accepted) drafts of the step whose first token this is."""
        assert sampled.token_id is not None, "appended a token that was not finite"
        self.token_ids.append(sampled.token_id)
        logprobs = sampled.logprobs
        return TokenOut(
            request_id=self.request_id,
            attempt=self.attempt,
            index=self.num_output - 1,
            token_id=sampled.token_id,
            logprobs=LogprobsOut(logprobs.chosen, logprobs.top) if logprobs else None,
            finish=self.stop.finish_reason(num_output=self.num_output, token_id=sampled.token_id),
            drafts=drafts,
        )


def attempts_up_to(sequences: Iterable[Sequence], request_id: str, attempt: int) -> list[Sequence]:
    """The request's sequences of ``attempt`` or an earlier attempt."""
    return [s for s in sequences if s.request_id == request_id and s.attempt <= attempt]


def youngest_since(sequences: Iterable[Sequence], arrival: int) -> Sequence | None:
    """The sequence that arrived last, or None if it arrived before ``arrival``."""
    youngest = max(sequences, key=lambda s: s.arrival, default=None)
    return None if youngest is None or youngest.arrival < arrival else youngest


@dataclass(frozen=True)
class Scheduled:
    """A batch together with the sequences behind its rows, in the same order."""

    rows: tuple[Row, ...]
    sequences: tuple[Sequence, ...]
    num_next_drafts: int = 0

    @property
    def batch(self) -> ForwardBatch:
        return ForwardBatch(self.rows, self.num_next_drafts)

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of a batch of prompts."""
        return sum(row.length for row in self.rows)

    def outcomes(self, result: StepResult) -> list[tuple[Sequence, Row, tuple[Sampled, ...]]]:
        return list(zip(self.sequences, self.rows, result.sampled, strict=True))
