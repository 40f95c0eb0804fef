"""The engine's input and output: batches, the passes that they are cut into, and results of steps.

Host data only, no tensors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from transport.wire.sampling import SamplingParams, StopRule

if TYPE_CHECKING:
    from engine.sampling.grammars import Compiled


@dataclass(frozen=True)
class Scoring:
    """The prompt log-probabilities that a prefill chunk computes: of ``next_ids``, the tokens that
    follow the chunk's tokens from ``first`` (counted in the chunk) on, each with the ``num_top``
    most probable ids at its position."""

    first: int
    next_ids: Sequence[int]
    num_top: int

    def within(self, offset: int, length: int) -> "Scoring | None":
        """The part that ``length`` tokens of the chunk, from its token ``offset`` on, compute."""
        begin = max(self.first, offset)
        end = min(self.first + len(self.next_ids), offset + length)
        if begin >= end:
            return None
        ids = self.next_ids[begin - self.first : end - self.first]
        return Scoring(begin - offset, ids, self.num_top)


@dataclass(frozen=True)
class Keep:
    """A state to keep for the prefix cache: the state behind a prefill chunk's first ``num_tokens``
    tokens is also stored in ``state_slot``. ``num_tokens`` is a multiple of 64, or the whole chunk,
    unless states are empty. No row of the batch has that slot."""

    num_tokens: int
    state_slot: int

    def within(self, offset: int, length: int) -> "Keep | None":
        """The state to keep within ``length`` tokens of the chunk, from its token ``offset`` on."""
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
    are requested, ``keep`` for chunks that pass a place where the prefix cache keeps the state.

    With drafts only the device knows how many were accepted. Then ``start`` of a decode row is a
    lower bound of the tokens in the cache, and exact only if no step for the sequence is under way.
    At most ``num_drafts`` of the drafts that the previous step made are verified."""

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

    ``num_next_drafts``: drafts that the step makes for the next step, if the engine has a draft
    layer.
    """

    rows: tuple[Row, ...]
    num_next_drafts: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.length for row in self.rows)


@dataclass(frozen=True)
class Pass:
    """Rows computed together, decode rows first. ``sampled`` and ``scored``: batch indices of the
    rows that sample, and of the rows with prompt log-probabilities, in their order."""

    rows: tuple[Row, ...]
    sampled: tuple[int, ...]
    scored: tuple[int, ...] = ()

    @property
    def decodes(self) -> bool:
        """True if all rows are decode rows."""
        return all(row.token_ids is None for row in self.rows)


Indexed = Sequence[tuple[int, Row]]
"""Rows with their batch indices."""


def together(rows: Indexed) -> Iterable[Indexed]:
    """All rows as one group."""
    return [rows]


def passes(
    batch: ForwardBatch,
    block: int | None,
    scored_block: int | None = None,
    *,
    separate: bool = False,
    longest: int | None = None,
    groups: Callable[[Indexed], Iterable[Indexed]] = together,
) -> list[Pass]:
    """The passes of a batch: all decode rows, then prefill rows, in blocks, or (``block`` None) in
    the same pass, unless ``separate``. Scored prompts come last, in passes of their own, in blocks
    of ``scored_block``.

    A block is at most ``block`` tokens of one prompt, counted from its chunk's start, which is
    aligned: the same blocks, thus the same arithmetic, however the prompt was cut and whatever runs
    beside it. Where packed rows need memory that not all can have at once, chunks are at most
    ``longest`` tokens, and ``groups`` divides them among passes.
    """
    rows = list(enumerate(batch.rows))
    decode = [(i, row) for i, row in rows if row.token_ids is None]
    prompts = [(i, row) for i, row in rows if row.token_ids is not None]
    prefill = [(i, row) for i, row in prompts if row.scoring is None]
    scored = [(i, row) for i, row in prompts if row.scoring is not None]
    if longest is not None:
        prefill, scored = _in_blocks(prefill, longest), _in_blocks(scored, longest)
    if block is None and not separate:
        decode, prefill = decode + prefill, []
    scores = _cut(scored, scored_block, groups, score=True)
    return _cut(decode, None, groups) + _cut(prefill, block, groups) + scores


@dataclass(frozen=True)
class SpreadPlan:
    """A decode step that all members of a group compute together, each with its own rows. The pair
    ``generation``, ``round`` is unique; rounds rise, and may skip numbers. All members have the
    same ``bucket`` (at least each member's number of sequences) and ``num_drafts`` (the most drafts
    that are verified for one sequence). A member may have no rows. ``first``: this member has no
    spread step under way or unread, so no result of an earlier step counts any more."""

    generation: int
    round: int
    bucket: int
    first: bool
    num_drafts: int = 0


@dataclass(frozen=True)
class Binding:
    """What the engine must know about a sequence before it samples its first token.

    ``prompt_ids`` and ``output_ids`` are the tokens that the sequence already has; the penalties
    count them. At decode there is at least one output id, and the last is fed to the first decode
    row; at prefill there are output ids if a request is resumed. ``compiled`` is the grammar that
    ``prepare`` returned; without it ``bind`` compiles the grammar.
    """

    state_slot: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling: SamplingParams
    stop: StopRule
    compiled: "Compiled | None" = None


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities before temperature and penalties, of the token and the k best."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One sampled token. ``token_id`` is None if the row's logits were not finite, or if no token
    continues its grammar; then ``error`` says why."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: str = ""


@dataclass(frozen=True)
class StepResult:
    """The result of a step. ``sampled`` has the new tokens of each row of the batch, none for a row
    that did not sample. A decode row has one token, and one more per accepted draft.

    ``scored`` has the prompt log-probabilities of rows with ``scoring``, by the row's index, as
    rows on the wire (transport/wire/prompt_logprobs.py); None if logits were not finite.
    """

    sampled: tuple[tuple[Sampled, ...], ...]
    scored: Mapping[int, bytes | None] = field(default_factory=dict)
    num_drafts: tuple[int, ...] = ()
    """Number of verified drafts of each row; empty: none."""
    num_stored: int = 1
    """How many of a decode row's new tokens its state slot includes. The others are *pending*: the
    row's next step adds them."""
    aborted: bool = False
    """True for a spread step that not all members computed. It has no other result, and the next
    launch finds everything as it was before the step, with nothing pending. Spread steps launched
    behind it have aborted too."""
    late: tuple[int, ...] = ()
    """Ranks of the members for which an aborted step waited in vain, as far as is known."""
    waited_s: tuple[float, ...] = ()
    """How long the device waited for each member within a spread step, by rank."""

    @property
    def drafts(self) -> tuple[int, ...]:
        """``num_drafts`` of every row."""
        return self.num_drafts or (0,) * len(self.sampled)


def _cut(
    rows: Indexed,
    block: int | None,
    groups: Callable[[Indexed], Iterable[Indexed]],
    *,
    score: bool = False,
) -> list[Pass]:
    if block is None:
        return [_pass(group, score=score) for group in groups(rows)] if rows else []
    return [_pass([part], score=score) for part in _in_blocks(rows, block)]


def _in_blocks(rows: Indexed, block: int) -> list[tuple[int, Row]]:
    return [(index, part) for index, row in rows for part in _blocks(row, block)]


def _pass(rows: Indexed, *, score: bool) -> Pass:
    return Pass(
        tuple(row for _, row in rows),
        tuple(i for i, row in rows if row.sample),
        tuple(i for i, row in rows if row.scoring is not None) if score else (),
    )


def _blocks(row: Row, block: int) -> list[Row]:
    assert row.token_ids is not None
    offsets = range(0, row.length, block)
    return [
        replace(
            row,
            start=row.start + offset,
            token_ids=row.token_ids[offset : offset + block],
            sample=row.sample and offset == offsets[-1],
            scoring=row.scoring.within(offset, block) if row.scoring else None,
            keep=row.keep.within(offset, block) if row.keep else None,
            next_id=_following(row, offset + block),
        )
        for offset in offsets
    ]


def _following(row: Row, end: int) -> int | None:
    """The token that follows a block of a chunk."""
    assert row.token_ids is not None
    return row.token_ids[end] if end < row.length else row.next_id
