"""Computes the tokens that a constrained sequence may have next, as bit masks for the sampler.

A sequence passes through these phases; a request may have any of them:

    thought   any token, up to the token that closes the thought, or up to the budget;
    forced    given tokens one after another: the close of a thought, the text before the answer;
    grammar   tokens that the grammar's matcher allows.

A step's mask needs the token of the previous step. ``Constraints.masks`` waits for that token only
after the forward pass of the new step has been launched, so the GPU computes meanwhile. A token
behind drafts gets the mask for the case that they are accepted. A token behind a draft that the
grammar forbids gets no mask: that draft is rejected.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

import torch
from llguidance import LLExecutor, LLMatcher

from engine.batch import Binding
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.grammars import Compiled, Grammars
from engine.step import SampleRow
from transport.wire.sampling import Constraint

COMPILE_S = 10.0
"""The longest wait for a grammar to be compiled. A worker's loop does not wait here: it holds the
sequence back until then (worker/compilations.py)."""
NOT_COMPILED = f"the grammar was not compiled within {COMPILE_S:g} s"
_BITS = 32


class TokenSource(Protocol):
    """The tokens of a step, which may still be on their way to the host."""

    def wait(self) -> None: ...

    def output(self, row: int) -> Sequence[int]: ...


@dataclass
class ConstrainedSequence:
    """One sequence's phase. ``error`` is set if no token continues its grammar: the request fails.

    ``compiled`` is the matcher at the grammar's start; None without a grammar.
    """

    constraint: Constraint
    compiled: Compiled | None = None
    error: str = ""
    _num_thought: int = 0
    _thinking: bool = field(init=False)
    _forced: deque[int] = field(default_factory=deque)
    _matcher: LLMatcher | None = None

    def __post_init__(self) -> None:
        self._thinking = self.constraint.thought_end is not None
        self._close_if_spent()

    @property
    def free(self) -> bool:
        """True if any token may come next."""
        return self._thinking or (not self._forced and self.compiled is None)

    def matcher(self) -> LLMatcher | None:
        """This sequence's own matcher; waits for the grammar to be compiled."""
        if self._matcher is None and self.compiled is not None and not self.error:
            try:
                # Not raised: a panic of the library is no Exception, and would end the worker.
                failure = self.compiled.exception(COMPILE_S)
            except TimeoutError:
                self.error = NOT_COMPILED
            else:
                if failure is not None:
                    self.error = f"the grammar could not be compiled: {failure}"
                    return None
                self._matcher = self.compiled.result().deep_copy()
                self.error = self._matcher.get_error()
        return self._matcher

    def consume(self, token_id: int) -> None:
        """Advance by the sequence's next token."""
        if self._forced:
            if self._forced.popleft() != token_id:
                self.error = f"token {token_id} was sampled where another token was forced"
        elif self._thinking:
            self._num_thought += 1
            if token_id == self.constraint.thought_end:
                self._thinking = False
                self._forced.extend(self.constraint.answer_ids)
            else:
                self._close_if_spent()
        elif (
            (matcher := self.matcher()) is not None
            and not matcher.is_stopped()
            and not matcher.consume_token(token_id)
        ):
            self.error = matcher.get_error() or f"the grammar does not allow token {token_id}"

    def behind(self, draft: int, eos_ids: Sequence[int]) -> "ConstrainedSequence | None":
        """The sequence's phase after the token ``draft``; None if that token is not allowed."""
        if not self.free:
            if only := self.only(eos_ids):
                possible = draft in only
            else:
                matcher = self.matcher()
                possible = matcher is not None and matcher.validate_tokens([draft]) == 1
            if not possible:
                return None
        other = copy(self)
        other._forced = deque(self._forced)
        other._matcher = self._matcher.deep_copy() if self._matcher is not None else None
        other.consume(draft)
        return other

    def only(self, eos_ids: Sequence[int]) -> Sequence[int]:
        """The only ids that may come next; empty if the matcher decides, or any id may come."""
        if self._forced:
            return (self._forced[0],)
        matcher = self.matcher()
        return eos_ids if self.error or (matcher is not None and matcher.is_stopped()) else ()

    def _close_if_spent(self) -> None:
        budget = self.constraint.thought_budget
        if self._thinking and budget is not None and self._num_thought >= budget:
            self._thinking = False
            self._forced.extend((*self.constraint.closing_ids, *self.constraint.answer_ids))


@dataclass(frozen=True)
class Masks:
    """Masks of the constrained ``rows`` of a pass: bit i % 32 of word i // 32 of ``bits`` int32
    [len(rows), words] allows id i. ``errors``: rows whose grammar no token continues, and why."""

    rows: tuple[int, ...]
    bits: torch.Tensor
    errors: dict[int, str]


class Constraints:
    """The constrained sequences of an engine, by state slot. One thread calls it."""

    def __init__(self, num_ids: int, grammars: Grammars | None, *, pinned: bool) -> None:
        self._grammars = grammars
        self._eos_ids = () if grammars is None else grammars.eos_ids
        self._pinned = pinned
        self._words = -(-num_ids // _BITS)
        self._executor = LLExecutor()
        self._sequences: dict[int, ConstrainedSequence] = {}
        self._sources: dict[int, tuple[TokenSource, int]] = {}

    def prepare(self, constraint: Constraint) -> Compiled | None:
        """Begin to compile the grammar of a sequence that will be bound soon; None without one."""
        if not constraint.grammar:
            return None
        assert self._grammars is not None, "a grammar, but no tokenizer"
        return self._grammars.compile(constraint.grammar)

    def bind(self, binding: Binding) -> None:
        """Give a slot a new sequence; the tokens that it has output already are replayed."""
        slot, constraint = binding.state_slot, binding.sampling.constraint
        self._sequences.pop(slot, None)
        self._sources.pop(slot, None)
        if constraint is None:
            return
        compiled = binding.compiled or self.prepare(constraint)
        sequence = self._sequences[slot] = ConstrainedSequence(constraint, compiled)
        for token_id in binding.output_ids:
            sequence.consume(token_id)

    @property
    def any_bound(self) -> bool:
        """True if any sequence is constrained; nearly always none is."""
        return bool(self._sequences)

    def masks(self, rows: Sequence[SampleRow], drafts: FedDrafts | None = None) -> Masks | None:
        """Masks of the constrained rows. Waits for the last tokens of their slots, and for the
        ``drafts`` before them."""
        found = [(i, each) for i, each in self._behind_drafts(rows, drafts) if not each.free]
        masked, sequences = [i for i, _ in found], [sequence for _, sequence in found]
        if not masked:
            return None
        bits = torch.zeros(len(masked), self._words, dtype=torch.int32, pin_memory=self._pinned)
        by_matcher: list[tuple[LLMatcher, int]] = []
        for i, sequence in enumerate(sequences):
            if only := sequence.only(self._eos_ids):
                _allow(bits[i], only)
            else:
                matcher = sequence.matcher()
                assert matcher is not None, "a constrained row without a matcher"
                by_matcher.append((matcher, i))
        if by_matcher:
            num_bytes = self._words * bits.element_size()
            self._executor.unsafe_compute_mask_ptr(
                by_matcher, bits.data_ptr(), num_bytes, len(masked)
            )
        for matcher, i in by_matcher:
            if matcher.is_error():
                sequences[i].error = matcher.get_error()
                _allow(bits[i], self._eos_ids)
        errors = {i: each.error for i, each in found if each.error}
        return Masks(tuple(masked), bits, errors)

    def sampled(self, slots: Sequence[int], source: TokenSource) -> None:
        """Note that ``source`` has, or will have, the next tokens of each slot."""
        for row, slot in enumerate(slots):
            if slot in self._sequences:
                self._sources[slot] = source, row

    def _behind_drafts(
        self, rows: Sequence[SampleRow], drafts: FedDrafts | None
    ) -> Iterator[tuple[int, ConstrainedSequence]]:
        """(index of a row, its sequence's phase behind the drafts before it), if they are
        allowed."""
        runs: dict[int, list[ConstrainedSequence | None]] = {}
        for index, row in enumerate(rows):
            if (sequence := self._sequences.get(row.state_slot)) is None:
                continue
            if row.state_slot not in runs:
                self._consume_tokens(row.state_slot, sequence)
                runs[row.state_slot] = [sequence]
            run = runs[row.state_slot]
            while len(run) <= row.place:
                assert drafts is not None, "a row behind drafts that are not given"
                last, draft = run[-1], drafts.on_host(row.state_slot)[len(run) - 1]
                run.append(None if last is None else last.behind(draft, self._eos_ids))
            if (behind := run[row.place]) is not None:
                yield index, behind

    def _consume_tokens(self, slot: int, sequence: ConstrainedSequence) -> None:
        """Advance a sequence's grammar by the tokens of its last step, waiting for them."""
        if (found := self._sources.pop(slot, None)) is None:
            return
        source, row = found
        source.wait()
        for token_id in source.output(row):
            if token_id >= 0:  # -1: the logits were not finite, and the sequence has failed
                sequence.consume(token_id)


def _allow(bits: torch.Tensor, ids: Sequence[int]) -> None:
    bits.zero_()
    for token_id in ids:
        word, bit = divmod(token_id, _BITS)
        bits[word] |= (1 << bit) - (1 << _BITS if bit == _BITS - 1 else 0)
