"""Choose each row's next token, reproducibly.

Order, per row (vLLM's, so that the same request means the same there and here):

1. logprobs, if asked for: log_softmax of the raw logits
2. ids masked that the request's grammar does not allow (constraints.py), and stop ids while fewer
   than min_tokens are out
3. logit_bias
4. repetition, then presence and frequency penalty
5. temperature 0: argmax, ties to the lowest id. Else divide by temperature
6. min_p, top_k, top_p, each among what the ones before it keep
7. argmax of logits + Gumbel noise, keyed by (seed, position, id) alone (kernels/philox.py):
   a draw from the softmax that depends on neither batch nor worker nor retry

The host knows each state slot's settings and launches only what some row needs; steps 2 to 4 then
go through all rows of the batch, with neutral values for those that did not ask
(sampling_tables.py). Ids past the tokenizer's never get logits at all.

Where a step verifies drafts, the steps 2 and 4 of a token see the drafts before it (fed_drafts.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from engine.batch import Binding
from engine.constraints import Constraints, Masks, TokenSource
from engine.fed_drafts import FedDrafts
from engine.grammars import Compiled, Grammars
from engine.kernels import torch_sampling
from engine.kernels.philox import gumbel_noise
from engine.logprobs import draw_with_logprobs
from engine.sampling_tables import SamplingTables
from engine.step import Draw, SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams


class Sampler:
    """Chooses tokens by the settings and penalty counts of every state slot (``tables``).

    ``next_token`` int64 [state slots] is what the next decode row of a slot feeds: the last
    output token given to ``bind``, then whatever ``sample`` chose.
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
        """``width``: ids of the tables, where logits are wider than the ``num_ids`` valid ones.
        ``grammars``: needed for sequences with a grammar."""
        self._num_slots, self._device = num_state_slots, device
        self.next_token = torch.zeros(num_state_slots, dtype=torch.int64, device=device)
        self.tables = SamplingTables(num_state_slots, num_ids, width or num_ids, device)
        self._constraints = Constraints(num_ids, grammars, pinned=device.type == "cuda")

    def prepare(self, params: SamplingParams) -> Compiled | None:
        """A sequence with these settings will be bound soon: its grammar, which a thread begins to
        compile; None without one."""
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
        host. Writes ``next_token`` and, for rows with penalties, their counts. With ``drafts`` that
        the rows stand behind, or ``held``, the counts and grammars wait for ``output``.
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
        self.next_token.index_copy_(0, slots, ids)
        drawn = draw_with_logprobs(logits, ids, torch.where(finite, ids, -1), settings)
        drawn = replace(drawn, errors={} if masks is None else masks.errors)
        if drafts is None and not held:
            self._put_out(rows, slots, ids, 1, drawn)
        return drawn

    @torch.inference_mode()
    def output(
        self,
        rows: Sequence[SampleRow],
        slots: torch.Tensor,
        ids: torch.Tensor,
        num_out: torch.Tensor,
        outcome: TokenSource,
    ) -> None:
        """Of the ``ids`` that ``sample`` chose for ``rows`` with drafts, or held, the first
        ``num_out`` int64 [sequences] of each run are output; ``outcome`` will say so on the
        host."""
        kept: torch.Tensor | int = 1
        if self._has_penalties(rows):
            runs = list(accumulate(int(row.place == 0) for row in rows))
            place = upload(torch.tensor([row.place for row in rows]), self._device)
            run = upload(torch.tensor(runs) - 1, self._device)
            kept = (place < num_out.index_select(0, run)).to(torch.int32)
        self._put_out([row for row in rows if not row.place], slots, ids, kept, outcome)

    @torch.inference_mode()
    def guess(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        drafts: FedDrafts | None = None,
    ) -> torch.Tensor:
        """Drafts, int64 [rows], from the draft layer's logits float32 [rows, first ids]: drawn with
        the penalties and the noise that the target's own choice will have, so that the two agree
        more often (Gumbel coupling). Filters, bias and grammars are the target's alone."""
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
        """Steps 2 to 4 but for grammars; arguments as ``sample``'s."""
        bounds = self.tables.bound_to(rows)
        if any(b.masks_stops(row.position) for row, b in zip(rows, bounds, strict=True)):
            logits = self.tables.without_early_stops(logits, slots, positions)
        if any(bound.sampling.logit_bias for bound in bounds):
            logits = self.tables.biased(logits, slots)
        if any(bound.sampling.has_penalties for bound in bounds):
            logits = self._penalised(logits, slots, drafts)
        return logits

    def has_history(self, state_slots: Iterable[int]) -> bool:
        """Whether a token sampled for one of these slots changes more than what is fed next."""
        found = [self.tables.bound[slot].sampling for slot in state_slots]
        return any(each.has_penalties or each.constraint is not None for each in found)

    def is_constrained(self, state_slot: int) -> bool:
        """Whether the host looks at the drafts of this slot."""
        return self.tables.bound[state_slot].sampling.constraint is not None

    def _has_penalties(self, rows: Sequence[SampleRow]) -> bool:
        return any(bound.sampling.has_penalties for bound in self.tables.bound_to(rows))

    def _masks(self, rows: Sequence[SampleRow], drafts: FedDrafts | None) -> Masks | None:
        """Of the constrained rows; waits for their last tokens, while this step is computed."""
        return self._constraints.masks(rows, drafts) if self._constraints.any_bound else None

    def _put_out(
        self,
        rows: Sequence[SampleRow],
        slots: torch.Tensor,
        ids: torch.Tensor,
        kept: torch.Tensor | int,
        outcome: TokenSource,
    ) -> None:
        """What the next step depends on: the counts of the ``ids`` that are ``kept`` (1, else 0),
        and the tokens of ``outcome``, whose rows are ``rows``."""
        if self._has_penalties(rows):
            self.tables.count(slots, ids, kept)
        if self._constraints.any_bound:
            self._constraints.sampled([row.state_slot for row in rows], outcome)

    def _penalised(
        self, logits: torch.Tensor, slots: torch.Tensor, drafts: FedDrafts | None
    ) -> torch.Tensor:
        """Step 4 of the first ids, as many as there are logits."""
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
        """Steps 5 to 7 -> ids int64 [rows]."""
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
