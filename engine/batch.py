"""What the engine is asked to execute, and what it answers: host data only, no tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transport.wire.sampling import SamplingParams, StopRule

if TYPE_CHECKING:
    from engine.grammars import Compiled


@dataclass(frozen=True)
class Scoring:
    """The log-probabilities that a prefill chunk gives of its prompt's tokens: those of
    ``next_ids``, which follow the chunk's tokens from ``first`` (counted in the chunk) on, each
    with the ``num_top`` most probable ids in its place."""

    first: int
    next_ids: Sequence[int]
    num_top: int

    def within(self, offset: int, length: int) -> "Scoring | None":
        """What ``length`` tokens of the chunk give, from its token ``offset`` on."""
        begin = max(self.first, offset)
        end = min(self.first + len(self.next_ids), offset + length)
        if begin >= end:
            return None
        ids = self.next_ids[begin - self.first : end - self.first]
        return Scoring(begin - offset, ids, self.num_top)


@dataclass(frozen=True)
class Keep:
    """The state behind a prefill chunk's first ``num_tokens`` tokens is also stored in
    ``state_slot``, for the prefix cache. ``num_tokens`` is a multiple of 64, or the whole chunk;
    the slot is that of no row of the batch."""

    num_tokens: int
    state_slot: int

    def within(self, offset: int, length: int) -> "Keep | None":
        """What at most ``length`` tokens of the chunk keep, from its token ``offset`` on."""
        if not offset < self.num_tokens <= offset + length:
            return None
        return Keep(self.num_tokens - offset, self.state_slot)


@dataclass(frozen=True)
class Row:
    """One sequence's part of a batch: a prefill chunk or one decode token.

    ``token_ids`` None is a decode row: the engine feeds the token it sampled last for
    ``state_slot`` (it never left the device). ``start`` tokens are already in the cache, and the
    slot has the state behind them; a row with ``start`` 0 begins from an empty state, whatever the
    slot held before. ``block_table`` covers
    ``start + length`` tokens; it may be the allocation's own list, which only grows, so that a step
    copies no table. ``sample`` is False for a chunk that is not the prompt's last; ``next_id`` is
    then the token after it, for the draft layer. ``scoring`` is for prompts whose log-probabilities
    are asked for, ``keep`` for chunks that pass a place where the prefix cache wants the state.

    With drafts the device alone knows how many were accepted: ``start`` of a decode row is then the
    least that is in the cache, and exact only where no step for the sequence is under way.
    ``num_drafts`` are to be verified at most, of those that the step before has made."""

    state_slot: int
    block_table: Sequence[int]
    start: int
    token_ids: tuple[int, ...] | None
    sample: bool = True
    scoring: Scoring | None = None
    num_drafts: int = 0
    next_id: int | None = None
    keep: Keep | None = None

    @property
    def length(self) -> int:
        return 1 if self.token_ids is None else len(self.token_ids)


@dataclass(frozen=True)
class ForwardBatch:
    """Rows computed together; any mix of prefill chunks and decode tokens.

    ``num_next_drafts``: drafts that the step makes for the next one, where the engine has a draft
    layer.
    """

    rows: tuple[Row, ...]
    num_next_drafts: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.length for row in self.rows)


@dataclass(frozen=True)
class SpreadPlan:
    """A decode step that all members of a group compute together, each with its own rows: the
    ``round`` of this ``generation``, a pair that no other step ever has. Rounds rise, and may leave
    numbers out. ``bucket`` and ``num_drafts`` are the same for all members: at least the sequences
    of each, and the most drafts that are verified of one. A member may have no rows. ``first``:
    this member has no spread step under way or unread, so nothing of an earlier one counts any
    more."""

    generation: int
    round: int
    bucket: int
    first: bool
    num_drafts: int = 0


@dataclass(frozen=True)
class Binding:
    """The facts about a sequence that the engine needs before it samples the first token of a state
    slot.

    ``prompt_ids`` and ``output_ids`` are what the sequence already has; the penalties count
    them. At decode there is an output id at least, and the last is fed to the first decode row; at
    prefill there are some where a request is resumed. ``compiled`` is the grammar that ``prepare``
    gave; without it ``bind`` has the grammar compiled.
    """

    state_slot: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling: SamplingParams
    stop: StopRule
    compiled: "Compiled | None" = None


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities before temperature and penalties: the token's, the k best."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One row's outcome. ``token_id`` is None when the row's logits were not finite, or when its
    grammar cannot go on: ``error`` then says why."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: str = ""


@dataclass(frozen=True)
class StepResult:
    """One entry per row of the batch: its new tokens, none for a row that did not sample. A decode
    row has one token, and one more for each draft that was accepted.

    ``scored`` has, by the index of a row with ``scoring``, its tokens' rows as they go on the wire
    (transport/wire/prompt_logprobs.py); None where logits were not finite.
    """

    sampled: tuple[tuple[Sampled, ...], ...]
    scored: Mapping[int, bytes | None] = field(default_factory=dict)
    num_drafts: tuple[int, ...] = ()
    """By row, how many drafts were verified; empty: none."""
    num_stored: int = 1
    """The state slot of a decode row has so many of its tokens. The others are *pending*: the row's
    next step adds them."""
    aborted: bool = False
    """A spread step that not all members computed: it has no other outcome, and what is launched
    next finds all as it was before, with nothing pending. Spread steps launched behind it have
    aborted too."""
    late: tuple[int, ...] = ()
    """The ranks of the members for which an aborted step waited in vain, as far as is known."""
    waited_s: tuple[float, ...] = ()
    """By rank, how long the device waited for each member within a spread step."""

    @property
    def drafts(self) -> tuple[int, ...]:
        """``num_drafts`` of every row."""
        return self.num_drafts or (0,) * len(self.sampled)
