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
go through all rows of the batch, with neutral values for those that did not ask. Values live in
tables indexed by state slot, on the device, so that a captured graph can read them. Ids past the
tokenizer's never get logits at all.

Where a step verifies drafts, the steps 2 and 4 of a token see the drafts before it (fed_drafts.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from engine.batch import Binding
from engine.constraints import Constraints, Masks, TokenSource
from engine.fed_drafts import FedDrafts
from engine.grammars import Compiled, Grammars
from engine.kernels import torch_sampling
from engine.kernels.philox import gumbel_noise
from engine.step import Draw, SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams, StopRule

TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
SEED, TOP_K, NUM_PROMPT, MIN_TOKENS = range(4)


@dataclass(frozen=True)
class Bound:
    """What is kept of a state slot's Binding: all but the ids, of which a prompt has many."""

    num_prompt: int
    sampling: SamplingParams
    stop: StopRule


class Sampler:
    """Sampling settings and penalty counts of every state slot.

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
        self._num_slots, self._num_ids, self._device = num_state_slots, num_ids, device
        self._width = width or num_ids
        self.next_token = torch.zeros(num_state_slots, dtype=torch.int64, device=device)
        self._floats = torch.zeros(num_state_slots, 6, device=device)
        self._ints = torch.zeros(num_state_slots, 4, dtype=torch.int64, device=device)
        self._bound: dict[int, Bound] = {}
        self._constraints = Constraints(num_ids, grammars, pinned=device.type == "cuda")
        # Tables of [state slots, ids] exist from the first sequence that needs them.
        self._in_prompt: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        self._stops: torch.Tensor | None = None

    def prepare(self, params: SamplingParams) -> Compiled | None:
        """A sequence with these settings will be bound soon: its grammar, which a thread begins to
        compile; None without one."""
        if params.constraint is None:
            return None
        return self._constraints.prepare(params.constraint)

    @torch.inference_mode()
    def bind(self, binding: Binding) -> None:
        """Give ``binding.state_slot`` to a sequence; replaces what the slot had before."""
        slot, params, stop = binding.state_slot, binding.sampling, binding.stop
        num_prompt = len(binding.prompt_ids)
        assert 0 <= slot < self._num_slots, slot
        floats = [
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        ]
        self._floats[slot] = upload(torch.tensor(floats), self._device)
        seed = (params.seed + 2**63) % 2**64 - 2**63
        ints = [seed, params.top_k, num_prompt, stop.min_tokens]
        self._ints[slot] = upload(torch.tensor(ints), self._device)
        if binding.output_ids:
            self.next_token[slot].fill_(binding.output_ids[-1])
        if params.has_penalties:
            self._count(slot, binding)
        had_bias = slot in self._bound and bool(self._bound[slot].sampling.logit_bias)
        if params.logit_bias or had_bias:
            self._bias = self._write(self._bias, torch.float32, slot, params.logit_bias)
        if stop.min_tokens:
            stops = dict.fromkeys(stop.stop_token_ids, 1)
            self._stops = self._write(self._stops, torch.bool, slot, stops)
        self._bound[slot] = Bound(num_prompt, params, stop)
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
        bindings = [self._bound[row.state_slot] for row in rows]
        settings = [binding.sampling for binding in bindings]
        finite = logits.sum(-1).isfinite()
        masks = self._masks(rows, drafts)
        masked = logits if masks is None else torch_sampling.masked(logits, masks.rows, masks.bits)
        adjusted = self._adjusted(masked, slots, positions, rows, bindings, drafts)
        if all(params.temperature == 0.0 for params in settings):
            ids = adjusted.argmax(-1)
        else:
            ids = self._drawn(adjusted, slots, positions, settings)
        self.next_token.index_copy_(0, slots, ids)
        drawn = self._with_logprobs(logits, ids, torch.where(finite, ids, -1), settings)
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
        if self._counts is not None:
            logits = self._penalised(logits, slots, drafts)
        temperature = self._floats.index_select(0, slots)[:, TEMPERATURE].unsqueeze(1)
        if logits.device.type == "cpu" and not temperature.any():
            return logits.argmax(-1)
        seeds = self._ints.index_select(0, slots)[:, SEED]
        noise = gumbel_noise(seeds, positions, logits.shape[1])
        scaled = logits / torch.where(temperature == 0.0, 1.0, temperature)
        return torch.where(temperature == 0.0, logits, scaled + noise).argmax(-1)

    def has_history(self, state_slots: Iterable[int]) -> bool:
        """Whether a token sampled for one of these slots changes more than what is fed next."""
        found = [self._bound[slot].sampling for slot in state_slots]
        return any(each.has_penalties or each.constraint is not None for each in found)

    def is_constrained(self, state_slot: int) -> bool:
        """Whether the host looks at the drafts of this slot."""
        return self._bound[state_slot].sampling.constraint is not None

    def _has_penalties(self, rows: Sequence[SampleRow]) -> bool:
        return any(self._bound[row.state_slot].sampling.has_penalties for row in rows)

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
            assert self._counts is not None
            places = slots * self._width + ids.clamp(min=0)
            more = torch.ones_like(places, dtype=torch.int32).mul_(kept)
            self._counts.view(-1).scatter_add_(0, places, more)
        if self._constraints.any_bound:
            self._constraints.sampled([row.state_slot for row in rows], outcome)

    def _adjusted(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
        bindings: Sequence[Bound],
        drafts: FedDrafts | None = None,
    ) -> torch.Tensor:
        """Steps 2 to 4. Rows that did not ask have neutral values in the tables."""
        if any(
            binding.stop.min_tokens > max(0, row.position - binding.num_prompt)
            for row, binding in zip(rows, bindings, strict=True)
        ):
            assert self._stops is not None
            integers = self._ints.index_select(0, slots)
            early = positions - integers[:, NUM_PROMPT] < integers[:, MIN_TOKENS]
            masked = self._stops.index_select(0, slots) & early.unsqueeze(1)
            logits = logits.masked_fill(masked, float("-inf"))
        if any(binding.sampling.logit_bias for binding in bindings):
            assert self._bias is not None
            logits = logits + self._bias.index_select(0, slots)
        if any(binding.sampling.has_penalties for binding in bindings):
            logits = self._penalised(logits, slots, drafts)
        return logits

    def _penalised(
        self, logits: torch.Tensor, slots: torch.Tensor, drafts: FedDrafts | None
    ) -> torch.Tensor:
        """Step 4 of the first ids, as many as there are logits."""
        in_prompts, all_counts = self._penalty_tables()
        num_ids = logits.shape[1]
        counts = all_counts.index_select(0, slots)[:, :num_ids]
        if drafts is not None:
            counts = drafts.counted(counts, slots)
        penalties = self._floats.index_select(0, slots)[:, REPETITION : FREQUENCY + 1]
        in_prompt = in_prompts.index_select(0, slots)[:, :num_ids]
        return torch_sampling.penalised(logits, in_prompt, counts, *penalties.unbind(1))

    def _drawn(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        settings: Sequence[SamplingParams],
    ) -> torch.Tensor:
        """Steps 5 to 7 -> ids int64 [rows]."""
        floats = self._floats.index_select(0, slots)
        integers = self._ints.index_select(0, slots)
        temperature = floats[:, TEMPERATURE]
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
                integers[index, TOP_K],
                floats[index, TOP_P],
                floats[index, MIN_P],
                short=group[0] in short,
            )
            part.masked_fill_(part < lowest.unsqueeze(1), float("-inf"))
            scaled.index_copy_(0, index, part)
        noise = gumbel_noise(integers[:, SEED], positions, logits.shape[1])
        ids = noise.add_(scaled).argmax(-1)
        if any(params.temperature == 0.0 for params in settings):
            ids = torch.where(greedy, logits.argmax(-1), ids)
        return ids

    def _with_logprobs(
        self,
        logits: torch.Tensor,
        ids: torch.Tensor,
        checked_ids: torch.Tensor,
        settings: Sequence[SamplingParams],
    ) -> Draw:
        wanted = tuple(
            (row, params.logprobs)
            for row, params in enumerate(settings)
            if params.logprobs is not None
        )
        if not wanted:
            return Draw(checked_ids)
        index = upload(torch.tensor([row for row, _ in wanted]), self._device)
        logprobs = logits.index_select(0, index).log_softmax(-1)
        chosen = logprobs.gather(1, ids.index_select(0, index).unsqueeze(1)).squeeze(1)
        best = logprobs.topk(min(max(k for _, k in wanted), logits.shape[1]))
        return Draw(checked_ids, wanted, (chosen, best.values, best.indices))

    def _penalty_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(``_in_prompt``, ``_counts``), made when first asked for."""
        if self._counts is None or self._in_prompt is None:
            shape = (self._num_slots, self._width)
            self._counts = torch.zeros(shape, dtype=torch.int32, device=self._device)
            self._in_prompt = torch.zeros(shape, dtype=torch.bool, device=self._device)
        return self._in_prompt, self._counts

    def _count(self, slot: int, binding: Binding) -> None:
        in_prompts, all_counts = self._penalty_tables()
        prompt = torch.from_numpy(np.array(binding.prompt_ids, dtype=np.int64))
        output = torch.from_numpy(np.array(binding.output_ids, dtype=np.int64))
        in_prompt = torch.zeros(self._width, dtype=torch.bool)
        in_prompt[prompt[prompt < self._num_ids]] = True
        counts = output[output < self._num_ids].bincount(minlength=self._width)
        in_prompts[slot] = upload(in_prompt, self._device)
        all_counts[slot] = upload(counts.to(torch.int32), self._device)

    def _write(
        self,
        table: torch.Tensor | None,
        dtype: torch.dtype,
        slot: int,
        values: dict[int, float] | dict[int, int],
    ) -> torch.Tensor:
        """Replace ``slot``'s row of a lazy [state slots, ids] table; unknown ids are left out."""
        if table is None:
            table = torch.zeros(self._num_slots, self._width, dtype=dtype, device=self._device)
        row = torch.zeros(self._width, dtype=dtype)
        known = [token_id for token_id in values if 0 <= token_id < self._num_ids]
        row[torch.tensor(known, dtype=torch.int64)] = torch.tensor(
            [values[token_id] for token_id in known], dtype=dtype
        )
        table[slot] = upload(row, self._device)
        return table
