"""Chooses each row's next token, reproducibly.

The order per row is vLLM's, so that a request means the same there and here:

1. logprobs, if requested: log_softmax of the raw logits
2. mask ids that the request's grammar does not allow (constraints.py), and stop ids while there are
   fewer than min_tokens output tokens
3. logit_bias
4. repetition, then presence and frequency penalty
5. temperature 0: argmax, ties to the lowest id. Otherwise divide by temperature
6. min_p, top_k, top_p, each among the ids that the previous ones keep
7. argmax of logits + Gumbel noise, keyed by (seed, position, id) alone (kernels/philox.py):
   a draw from the softmax that depends on neither batch nor worker nor retry

The host knows each state slot's settings and launches only the steps that some row needs. Steps 2
to 4 then apply to all rows of the batch, with neutral values for rows that do not need them
(sampling_tables.py). No logits are computed for ids beyond the tokenizer's.

If a decode step verifies drafts, steps 2 and 4 of a token see the drafts before it (fed_drafts.py).
In a benchmark with a given acceptance, a token that verifies a draft is then decided by lot
(given_acceptance.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import torch

from engine.batch import Binding
from engine.kernels.sampling import torch_sampling
from engine.kernels.sampling.philox import gumbel_noise
from engine.sampling.constraints import Constraints, Masks, TokenSource
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.given_acceptance import GivenAcceptance
from engine.sampling.grammars import Compiled, Grammars
from engine.sampling.logprobs import draw_with_logprobs
from engine.sampling.sampling_tables import SamplingTables
from engine.step import Draw, SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams


class Sampler:
    """Chooses tokens by the settings and penalty counts of every state slot (``tables``).

    ``next_token`` int64 [state slots] is the token that a slot's next decode row feeds: the last
    output token given to ``bind``, then the tokens that ``sample`` chose.
    """

    def __init__(
        self,
        num_state_slots: int,
        num_ids: int,
        device: torch.device,
        *,
        width: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        """``width``: ids of the tables, if logits are wider than the ``num_ids`` valid ids.
        ``grammars``: needed for sequences with a grammar."""
        self._num_slots, self._device = num_state_slots, device
        self.next_token = torch.zeros(num_state_slots, dtype=torch.int64, device=device)
        self.tables = SamplingTables(num_state_slots, num_ids, width or num_ids, device)
        self._constraints = Constraints(num_ids, grammars, pinned=device.type == "cuda")
        self._draft_acceptance: float | None = None

    def prepare(self, params: SamplingParams) -> Compiled | None:
        """Begin to compile the grammar of a sequence that will be bound soon; None without one."""
        if params.constraint is None:
            return None
        return self._constraints.prepare(params.constraint)

    @torch.inference_mode()
    def bind(self, binding: Binding) -> None:
        """Give ``binding.state_slot`` to a sequence; replaces what the slot had before."""
        slot = binding.state_slot
        assert 0 <= slot < self._num_slots, slot
        self.tables.bind(binding)
        if binding.output_ids:
            self.next_token[slot].fill_(binding.output_ids[-1])
        self._constraints.bind(binding)

    def accept_drafts(self, probability: float) -> None:
        """Accept drafts with this probability from now on, whatever the target chooses: for
        benchmarks only (given_acceptance.py)."""
        self._draft_acceptance = probability

    @contextmanager
    def on_another_stream(self) -> Iterator[None]:
        """Let the calls within run at the same time as those without, for other slots."""
        yield

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
        drafts: FedDrafts | None = None,
        *,
        held: bool = False,
    ) -> Draw:
        """Choose a token for each row of ``logits`` (float32 [rows, ids]) and feed it onward.

        ``slots`` and ``positions`` (int64 [rows]) say on the device what ``rows`` says on the
        host. Writes ``next_token`` and, for rows with penalties, their counts. With ``drafts``
        before the rows, or ``held``, the counts and grammars wait for ``note_output``.
        """
        settings = [bound.sampling for bound in self.tables.bound_to(rows)]
        finite = logits.sum(-1).isfinite()
        masks = self._masks(rows, drafts)
        masked = logits if masks is None else torch_sampling.masked(logits, masks.rows, masks.bits)
        adjusted = self.adjusted(masked, slots, positions, rows, drafts)
        if all(params.temperature == 0.0 for params in settings):
            ids = adjusted.argmax(-1)
        else:
            ids = self._drawn(adjusted, slots, positions, settings)
        if (given := self._given_acceptance(rows, drafts, masks)) is not None:
            ids = given.decided(ids, slots, positions)
        self.next_token.index_copy_(0, slots, ids)
        drawn = draw_with_logprobs(logits, ids, torch.where(finite, ids, -1), settings)
        drawn = replace(drawn, errors={} if masks is None else masks.errors)
        if drafts is None and not held:
            self._record(rows, slots, ids, 1, drawn)
        return drawn

    @torch.inference_mode()
    def note_output(
        self,
        rows: Sequence[SampleRow],
        slots: torch.Tensor,
        ids: torch.Tensor,
        num_out: torch.Tensor,
        outcome: TokenSource,
    ) -> None:
        """Note which of the ``ids`` that ``sample`` chose for ``rows``, with drafts or held, are
        output: the first ``num_out`` int64 [sequences] of each run. ``outcome`` has them on the
        host later."""
        kept: torch.Tensor | int = 1
        if self._has_penalties(rows):
            runs = list(accumulate(int(row.place == 0) for row in rows))
            place = upload(torch.tensor([row.place for row in rows]), self._device)
            run = upload(torch.tensor(runs) - 1, self._device)
            kept = (place < num_out.index_select(0, run)).to(torch.int32)
        self._record([row for row in rows if not row.place], slots, ids, kept, outcome)

    @torch.inference_mode()
    def guess(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        drafts: FedDrafts | None = None,
    ) -> torch.Tensor:
        """Drafts, int64 [rows], from the draft layer's logits float32 [rows, first ids]. They are
        drawn with the penalties and the noise of the target's own choice, so that the two agree
        more often (Gumbel coupling). Filters, bias and grammars only apply to the target."""
        if self.tables.counts.values is not None:
            logits = self._penalised(logits, slots, drafts)
        columns = self.tables.columns.at(slots)
        temperature = columns.temperature.unsqueeze(1)
        if logits.device.type == "cpu" and not temperature.any():
            return logits.argmax(-1)
        noise = gumbel_noise(columns.seed, positions, logits.shape[1])
        scaled = logits / torch.where(temperature == 0.0, 1.0, temperature)
        return torch.where(temperature == 0.0, logits, scaled + noise).argmax(-1)

    def adjusted(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
        drafts: FedDrafts | None = None,
    ) -> torch.Tensor:
        """The logits after steps 2 to 4 without grammars; arguments as in ``sample``."""
        bounds = self.tables.bound_to(rows)
        if any(b.masks_stops(row.position) for row, b in zip(rows, bounds, strict=True)):
            logits = self.tables.without_early_stops(logits, slots, positions)
        if any(bound.sampling.logit_bias for bound in bounds):
            logits = self.tables.biased(logits, slots)
        if any(bound.sampling.has_penalties for bound in bounds):
            logits = self._penalised(logits, slots, drafts)
        return logits

    def has_history(self, state_slots: Iterable[int]) -> bool:
        """True if a token sampled for one of these slots changes more than the next fed token."""
        found = [self.tables.bound[slot].sampling for slot in state_slots]
        return any(each.has_penalties or each.constraint is not None for each in found)

    def is_constrained(self, state_slot: int) -> bool:
        """True if the slot has a grammar, for which the host reads its drafts."""
        return self.tables.bound[state_slot].sampling.constraint is not None

    def _has_penalties(self, rows: Sequence[SampleRow]) -> bool:
        return any(bound.sampling.has_penalties for bound in self.tables.bound_to(rows))

    def _masks(self, rows: Sequence[SampleRow], drafts: FedDrafts | None) -> Masks | None:
        """Masks of the constrained rows; waits for their last tokens, while this step is
        computed."""
        return self._constraints.masks(rows, drafts) if self._constraints.any_bound else None

    def _given_acceptance(
        self, rows: Sequence[SampleRow], drafts: FedDrafts | None, masks: Masks | None
    ) -> GivenAcceptance | None:
        """Decides about the drafts of a step in a benchmark with a given acceptance; None if the
        target's choices decide. They always do for tokens that a grammar or min_tokens restricts:
        a draft may be a token that the sequence must not have."""
        if drafts is None or self._draft_acceptance is None:
            return None
        masked = set(() if masks is None else masks.rows)
        verified = [
            -1 if i in masked or bound.masks_stops(row.position) else place
            for i, (place, row, bound) in enumerate(
                zip(drafts.verified, rows, self.tables.bound_to(rows), strict=True)
            )
        ]
        if all(place < 0 for place in verified):
            return None
        on_device = upload(torch.tensor(verified), self._device)
        seeds = self.tables.columns.seed
        return GivenAcceptance(self._draft_acceptance, drafts.ids, on_device, seeds)

    def _record(
        self,
        rows: Sequence[SampleRow],
        slots: torch.Tensor,
        ids: torch.Tensor,
        kept: torch.Tensor | int,
        outcome: TokenSource,
    ) -> None:
        """Update what the next step depends on: the counts of the ``ids`` that are ``kept`` (1,
        else 0), and the grammars by the tokens of ``outcome``, whose rows are ``rows``."""
        if self._has_penalties(rows):
            self.tables.count(slots, ids, kept)
        if self._constraints.any_bound:
            self._constraints.sampled([row.state_slot for row in rows], outcome)

    def _penalised(
        self, logits: torch.Tensor, slots: torch.Tensor, drafts: FedDrafts | None
    ) -> torch.Tensor:
        """Apply step 4 to the first ids, as many as there are logits."""
        num_ids = logits.shape[1]
        counts = self.tables.counts.rows(slots)[:, :num_ids]
        if drafts is not None:
            counts = drafts.counted(counts, slots)
        in_prompt = self.tables.in_prompt.rows(slots)[:, :num_ids]
        penalties = self.tables.columns.penalties.index_select(0, slots)
        return torch_sampling.penalised(logits, in_prompt, counts, *penalties.unbind(1))

    def _drawn(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        settings: Sequence[SamplingParams],
    ) -> torch.Tensor:
        """Apply steps 5 to 7 -> ids int64 [rows]."""
        columns = self.tables.columns.at(slots)
        temperature = columns.temperature
        greedy = temperature == 0.0
        scaled = logits / torch.where(greedy, 1.0, temperature).unsqueeze(1)
        filtered = [row for row, params in enumerate(settings) if params.has_filters]
        short = {row for row in filtered if 0 < settings[row].top_k <= torch_sampling.SHORT_TOP_K}
        for group in ([r for r in filtered if r in short], [r for r in filtered if r not in short]):
            if not group:
                continue
            index = upload(torch.tensor(group), self._device)
            part = scaled.index_select(0, index)
            lowest = torch_sampling.threshold(
                part,
                columns.top_k[index],
                columns.top_p[index],
                columns.min_p[index],
                short=group[0] in short,
            )
            part.masked_fill_(part < lowest.unsqueeze(1), float("-inf"))
            scaled.index_copy_(0, index, part)
        noise = gumbel_noise(columns.seed, positions, logits.shape[1])
        ids = noise.add_(scaled).argmax(-1)
        if any(params.temperature == 0.0 for params in settings):
            ids = torch.where(greedy, logits.argmax(-1), ids)
        return ids
