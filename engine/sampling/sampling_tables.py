"""The sampling settings of each state slot: on the host, and in tables on the device.

The host's copy says what a step must launch. The tables are indexed by state slot, so that a
captured graph can read them. Tables of [state slots, ids] exist from the first sequence that needs
them, and hold neutral values for all other slots.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import Binding
from engine.step import SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams, StopRule


@dataclass(frozen=True)
class Bound:
    """The part of a state slot's Binding that is kept: all except the many ids of a prompt."""

    num_prompt: int
    sampling: SamplingParams
    stop: StopRule

    def masks_stops(self, position: int) -> bool:
        """True if the token at ``position`` must not be a stop id, because of min_tokens."""
        return self.stop.min_tokens > max(0, position - self.num_prompt)

    def adjusts(self, position: int) -> bool:
        """True if the logits of the token at ``position`` are changed, by more than a grammar,
        before they are divided by its temperature."""
        params = self.sampling
        return params.has_penalties or bool(params.logit_bias) or self.masks_stops(position)


@dataclass(frozen=True)
class Columns:
    """The numeric settings of n state slots or of n rows: ``floats`` float32 [n, 6], and ``ints``
    int64 [n, 3]."""

    floats: torch.Tensor
    ints: torch.Tensor

    def at(self, slots: torch.Tensor) -> "Columns":
        """The columns of each row, given the rows' state slots int64 [rows]."""
        return Columns(self.floats.index_select(0, slots), self.ints.index_select(0, slots))

    @property
    def temperature(self) -> torch.Tensor:
        return self.floats[:, 0]

    @property
    def top_p(self) -> torch.Tensor:
        return self.floats[:, 1]

    @property
    def min_p(self) -> torch.Tensor:
        return self.floats[:, 2]

    @property
    def penalties(self) -> torch.Tensor:
        """Repetition, presence, frequency: [n, 3]."""
        return self.floats[:, 3:6]

    @property
    def seed(self) -> torch.Tensor:
        return self.ints[:, 0]

    @property
    def top_k(self) -> torch.Tensor:
        return self.ints[:, 1]

    @property
    def stops_from(self) -> torch.Tensor:
        """The first position whose token may be a stop id."""
        return self.ints[:, 2]


class IdTable:
    """A table [state slots, ids] on the device, with zeros where nothing was ``put``. It takes no
    memory until it is needed; until then ``values`` is None."""

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self._shape, self._dtype, self._device = shape, dtype, device
        self.values: torch.Tensor | None = None

    def made(self) -> torch.Tensor:
        """``values``, allocated on first use."""
        if self.values is None:
            self.values = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
        return self.values

    def put(self, slot: int, row: torch.Tensor) -> None:
        """Replace a slot's row by ``row`` [ids], which is on the host."""
        self.made()[slot] = upload(row.to(self._dtype), self._device)

    def rows(self, slots: torch.Tensor) -> torch.Tensor:
        """A copy [rows, ids] of the rows of ``slots`` int64 [rows]."""
        assert self.values is not None, "no sequence has needed this table"
        return self.values.index_select(0, slots)


class SamplingTables:
    """Settings of ``num_slots`` state slots. Tables of ids are ``width`` wide; the first
    ``num_ids`` ids are valid.

    ``in_prompt`` bool and ``counts`` int32 (how often an id was output) are for slots with
    penalties.
    """

    def __init__(self, num_slots: int, num_ids: int, width: int, device: torch.device) -> None:
        self._num_ids, self._width, self._device = num_ids, width, device
        floats = torch.zeros(num_slots, 6, device=device)
        ints = torch.zeros(num_slots, 3, dtype=torch.int64, device=device)
        self.columns = Columns(floats, ints)
        self.bound: dict[int, Bound] = {}
        shape = num_slots, width
        self.in_prompt = IdTable(shape, torch.bool, device)
        self.counts = IdTable(shape, torch.int32, device)
        self._bias = IdTable(shape, torch.float32, device)
        self._stops = IdTable(shape, torch.bool, device)

    def bound_to(self, rows: Iterable[SampleRow]) -> list[Bound]:
        """The settings of each row's sequence."""
        return [self.bound[row.state_slot] for row in rows]

    def bind(self, binding: Binding) -> None:
        """Write the row of ``binding.state_slot``; replaces what the slot had before."""
        slot, params, stop = binding.state_slot, binding.sampling, binding.stop
        num_prompt = len(binding.prompt_ids)
        floats = [
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        ]
        self.columns.floats[slot] = upload(torch.tensor(floats), self._device)
        seed = (params.seed + 2**63) % 2**64 - 2**63
        ints = [seed, params.top_k, num_prompt + stop.min_tokens]
        self.columns.ints[slot] = upload(torch.tensor(ints), self._device)
        if params.has_penalties:
            in_prompt = torch.zeros(self._width, dtype=torch.bool)
            in_prompt[self._valid(binding.prompt_ids)] = True
            self.in_prompt.put(slot, in_prompt)
            counts = self._valid(binding.output_ids).bincount(minlength=self._width)
            self.counts.put(slot, counts)
        had_bias = slot in self.bound and bool(self.bound[slot].sampling.logit_bias)
        if params.logit_bias or had_bias:
            self._bias.put(slot, self._row(params.logit_bias))
        if stop.min_tokens:
            self._stops.put(slot, self._row(dict.fromkeys(stop.stop_token_ids, 1.0)))
        self.bound[slot] = Bound(num_prompt, params, stop)

    def count(self, slots: torch.Tensor, ids: torch.Tensor, kept: torch.Tensor | int) -> None:
        """Count the ``ids`` int64 [rows] (-1: none) that are output: those with ``kept`` 1, not
        0."""
        counts = self.counts.values
        assert counts is not None
        places = slots * self._width + ids.clamp(min=0)
        more = torch.ones_like(places, dtype=torch.int32).mul_(kept)
        counts.view(-1).scatter_add_(0, places, more)

    def without_early_stops(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """``logits`` [rows, ids] with -inf at the stop ids of rows that ``Bound.masks_stops``."""
        early = positions < self.columns.stops_from.index_select(0, slots)
        masked = self._stops.rows(slots) & early.unsqueeze(1)
        return logits.masked_fill(masked, float("-inf"))

    def biased(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """``logits`` [rows, ids] with each row's logit_bias."""
        return logits + self._bias.rows(slots)

    def _valid(self, ids: Sequence[int]) -> torch.Tensor:
        found = torch.from_numpy(np.array(ids, dtype=np.int64))
        return found[found < self._num_ids]

    def _row(self, values: Mapping[int, float]) -> torch.Tensor:
        """A row, float32 [ids], with ``values`` by id; invalid ids are left out."""
        row = torch.zeros(self._width)
        known = [token_id for token_id in values if 0 <= token_id < self._num_ids]
        row[torch.tensor(known, dtype=torch.int64)] = torch.tensor(
            [values[token_id] for token_id in known], dtype=torch.float32
        )
        return row
