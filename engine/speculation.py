"""Decode steps that verify drafts and make new ones, pass by pass (speculative decoding).

A sequence's step, with L tokens in the cache and ``next_token`` the one after them:

1. verify    forward of next_token and its drafts at positions L, L + 1, …
2. sample    the target's choice for each, with the noise of its (seed, position)
3. accept    as many drafts as equal that choice; the token after them is new too
4. draft     the draft layer at the accepted positions, then once per further draft;
             if the next step has no drafts, only the layer's KV

A draft is accepted only if the target chose the same token itself, so the output does not depend
on drafts. A rejected draft leaves no trace: its KV is behind the sequence's end and is overwritten,
and the recurrent states advance by accepted tokens only (kernels/state_ring.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch

from engine.batch import Pass, Row
from engine.cache.state_ring import StateRing
from engine.inputs import DraftRows, Inputs
from engine.kernels.interface import Kernels
from engine.model.model import Model, finished
from engine.model.mtp import Chosen, draft_hidden, draft_kv
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.sampler import Sampler
from engine.sampling.verified import Verified
from engine.step import Draw, Outcome, SampleRow
from engine.upload import upload
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout

DRAFT_IDS = 65_536
"""Only the first ids can be drafts: a BPE vocabulary has its most frequent merges first. With
Qwen3.5's vocabulary they cover 99.3, 98.1 and 97.8 % of the tokens of GSM8K's answers, this
repository's docs and its code. The first 32,768 ids cover 97.4, 93.7 and 92.7 %, which costs more
than the 31 µs per draft that they save. NOTE: of Chinese text these ids cover 63 %, the first
131,072 98 %."""


class Drafts(Protocol):
    """Computes decode steps with drafts."""

    def forget(self, state_slot: int) -> None: ...

    def prefilled(self, part: Pass, inputs: Inputs, hidden: torch.Tensor) -> None: ...

    def launch(self, rows: Sequence[Row], num_next: int) -> tuple[list[int], Outcome]: ...


def draft_prompts(
    model: Model,
    cache: CacheTensors,
    kernels: Kernels,
    sampler: Sampler,
    part: Pass,
    inputs: Inputs,
    hidden: torch.Tensor,
) -> None:
    """Write the draft layer's KV of a pass of prompts. The layer takes each token's hidden state
    and the id that follows; for the last token of a prompt that is the id just sampled."""
    ids: list[int] = []
    for row in part.rows:
        assert row.token_ids is not None, "a decode row among prompts"
        ids += [*row.token_ids[1:], row.next_id or 0]
    follow = upload(torch.tensor(ids), hidden.device)
    sampled = sampler.next_token.index_select(0, inputs.sample_slots)
    follow = follow.index_copy(0, inputs.sample_index, sampled)
    draft_kv(model, follow, hidden, inputs, cache, kernels)


class _Verifying(NamedTuple):
    """A step up to the target's choices. ``tokens``: a row for each token that was ``fed``, the
    drafts included; ``fed`` are the ids of each sequence's own."""

    tokens: list[Row]
    inputs: Inputs
    fed: list[torch.Tensor]
    hidden: torch.Tensor
    sample_rows: list[SampleRow]
    draw: Draw


class Speculation:
    """Drafts of every state slot, on a device whose results the host has when a launch returns.

    State for the next step: ``_lengths`` (tokens in the cache, None: the row's ``start``),
    ``_made`` drafts in ``_ids`` [drafts, state slots], and pending entries in the rings.
    """

    def __init__(
        self,
        model: Model,
        cache: CacheTensors,
        layout: CacheLayout,
        kernels: Kernels,
        sampler: Sampler,
        num_logits: int,
        max_drafts: int,
    ) -> None:
        self._model, self._cache, self._layout = model, cache, layout
        self._kernels, self._sampler, self._num_logits = kernels, sampler, num_logits
        self._device = sampler.next_token.device
        num_slots = sampler.next_token.shape[0]
        self._pending = torch.zeros(num_slots, dtype=torch.int32, device=self._device)
        self._rings = StateRing.allocate(
            layout, max_drafts, kernels.ring_shape(layout), cache.conv.dtype, self._pending
        )
        self._ids = torch.zeros(max_drafts, num_slots, dtype=torch.int64, device=self._device)
        self._num_draft_ids = min(DRAFT_IDS, num_logits)
        self._lengths: list[int | None] = [None] * num_slots
        self._made = [0] * num_slots
        self._num_pending = [0] * num_slots

    def forget(self, state_slot: int) -> None:
        """Drop a slot's drafts, because the slot has a new owner."""
        self._lengths[state_slot], self._made[state_slot] = None, 0
        self._pending[state_slot] = self._num_pending[state_slot] = 0

    def prefilled(self, part: Pass, inputs: Inputs, hidden: torch.Tensor) -> None:
        """Write the draft layer's KV of a pass of prompts, once the tokens that follow are sampled.
        ``hidden``: the hidden states of every token."""
        draft_prompts(self._model, self._cache, self._kernels, self._sampler, part, inputs, hidden)

    def launch(self, rows: Sequence[Row], num_next: int) -> tuple[list[int], Verified]:
        """Compute one step -> (the index of each token's row, the tokens)."""
        counts = tuple(1 + self._num_drafts(row) for row in rows)
        step = self._verify(rows, counts)
        slots, sampled = step.inputs.sample_slots, step.draw.device_ids
        accepted, kept = self._accept(rows, counts, sampled, step.fed)
        verified = Verified(step.draw, counts, torch.tensor(accepted) + 1)
        num_out = verified.num_out.to(self._device)
        self._sampler.note_output(step.sample_rows, slots, sampled, num_out, verified)
        ended = [
            replace(row, start=self._length(row) + num)
            for row, num in zip(rows, accepted, strict=True)
        ]
        for row, last in zip(rows, ended, strict=True):
            self._lengths[row.state_slot] = last.start + 1
        tokens, inputs, hidden, following = step.tokens, step.inputs, step.hidden, sampled
        if not all(kept):
            tokens = [token for token, keep in zip(tokens, kept, strict=True) if keep]
            chosen, inputs = torch.tensor(kept), self._inputs(tokens)
            hidden, following = hidden[chosen], following[chosen]
        self._draft(tokens, inputs, ended, num_next, hidden, following.clamp(min=0))
        owners = [i for i, count in enumerate(counts) for _ in range(count)]
        return owners, verified

    def _verify(self, rows: Sequence[Row], counts: Sequence[int]) -> "_Verifying":
        """Compute and sample the next token of each row and its drafts, ``counts`` in all."""
        tokens = [
            replace(row, start=self._length(row) + j)
            for row, count in zip(rows, counts, strict=True)
            for j in range(count)
        ]
        inputs = self._inputs(tokens)
        slots = torch.tensor([row.state_slot for row in rows], device=self._device)
        num_pending = tuple(self._num_pending[row.state_slot] for row in rows)
        if max(counts) > 1 or any(num_pending):
            inputs.drafts = DraftRows(slots, tuple(counts), self._rings, num_pending)
        ids = [self._run(row.state_slot, count) for row, count in zip(rows, counts, strict=True)]
        hidden = finished(
            self._model.forward(
                inputs, torch.cat(ids), self._cache, self._kernels, every_token=True
            )
        )
        logits = self._model.logits(hidden, self._num_logits, self._kernels)
        places = [j for count in counts for j in range(count)]
        sample_rows = [
            SampleRow(token.state_slot, token.start + 1, place)
            for token, place in zip(tokens, places, strict=True)
        ]
        fed = FedDrafts.of_runs(self._ids, counts, self._drafts_of)
        draw = self._sampler.sample(
            logits, inputs.sample_slots, inputs.sample_positions, sample_rows, fed
        )
        return _Verifying(tokens, inputs, ids, hidden, sample_rows, draw)

    def _accept(
        self,
        rows: Sequence[Row],
        counts: Sequence[int],
        sampled: torch.Tensor,
        fed: Sequence[torch.Tensor],
    ) -> tuple[list[int], list[bool]]:
        """Compare drafts with the target's choices -> (accepted drafts of each row, whether each
        token is output)."""
        accepted: list[int] = []
        kept: list[bool] = []
        for row, count, ids, own in zip(
            rows, counts, fed, sampled.split(list(counts)), strict=True
        ):
            agrees = (own[:-1] == ids[1:]).tolist()
            num = next((i for i, same in enumerate(agrees) if not same), count - 1)
            accepted.append(num)
            kept += [j <= num for j in range(count)]
            self._pending[row.state_slot] = self._num_pending[row.state_slot] = num
            self._sampler.next_token[row.state_slot] = own[num].clamp(min=0)
        return accepted, kept

    def _draft(
        self,
        tokens: Sequence[Row],
        inputs: Inputs,
        ended: Sequence[Row],
        num_next: int,
        hidden: torch.Tensor,
        ids: torch.Tensor,
    ) -> None:
        """Make the next step's drafts. ``tokens`` and ``inputs``: this step's output tokens, with
        the trunk's hidden states and the ids that follow. ``ended``: each row's last token."""
        for row in ended:
            self._made[row.state_slot] = 0
        if not num_next:
            draft_kv(self._model, ids, hidden, inputs, self._cache, self._kernels)
            return
        rows, chosen, last = list(ended), None, inputs
        if len(tokens) > len(rows):
            place = {token.state_slot: i for i, token in enumerate(tokens)}
            index = torch.tensor([place[row.state_slot] for row in rows], device=self._device)
            last = self._inputs(rows)
            chosen = Chosen(index, last)
        hidden = self._draft_hidden(inputs, ids, hidden, chosen)
        inputs = last
        for i in range(min(num_next, len(self._ids))):
            logits = self._model.logits(hidden, self._num_draft_ids, self._kernels)
            # The layer is at the last token, and guesses the token after the next.
            before = FedDrafts(self._ids, [i] * len(rows), self._drafts_of)
            guessed = self._sampler.guess(
                logits, inputs.sample_slots, inputs.sample_positions + 1, before
            )
            self._ids[i].index_copy_(0, inputs.sample_slots, guessed)
            for row in rows:
                self._made[row.state_slot] = i + 1
            staying = [j for j, row in enumerate(rows) if row.start + 1 < self._room(row)]
            if i + 1 == num_next or not staying:
                return
            rows = [replace(rows[j], start=rows[j].start + 1) for j in staying]
            index = torch.tensor(staying, device=self._device)
            inputs = self._inputs(rows)
            hidden = self._draft_hidden(inputs, guessed[index], hidden[index])

    def _draft_hidden(
        self,
        inputs: Inputs,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        chosen: Chosen | None = None,
    ) -> torch.Tensor:
        return draft_hidden(self._model, ids, hidden, inputs, self._cache, self._kernels, chosen)

    def _inputs(self, rows: Sequence[Row]) -> Inputs:
        return Inputs.of(rows, self._layout, self._device)

    def _drafts_of(self, slot: int) -> list[int]:
        ids: list[int] = self._ids[:, slot].tolist()
        return ids

    def _run(self, slot: int, count: int) -> torch.Tensor:
        """The ids that are fed to a row of ``count`` tokens."""
        return torch.cat((self._sampler.next_token[slot : slot + 1], self._ids[: count - 1, slot]))

    def _num_drafts(self, row: Row) -> int:
        room = self._room(row) - self._length(row) - 1
        return min(row.num_drafts, self._made[row.state_slot], room)

    def _length(self, row: Row) -> int:
        """Tokens in the cache, at most one fewer than the row's pages hold. There are only more
        after the end of a sequence, which the host may learn one step late; it then drops the
        results of this step."""
        known = self._lengths[row.state_slot]
        return min(row.start if known is None else known, self._room(row) - 1)

    def _room(self, row: Row) -> int:
        """Number of tokens that the row's pages hold."""
        return len(row.block_table) * self._layout.page_size
