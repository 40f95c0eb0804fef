"""The time of a decode step: on one GPU by its measured table, or spread over several by the
shipped one. Pure.

The table of one GPU is with sequences of 1,024 to 2,048 tokens.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from decode.spread_policy import ENTERS_FROM
from decode.spread_table import Curve, Experts, StepTable, between, shipped
from transport.wire.spread import MAX_MEMBERS, MAX_ROWS

EXPERTS = Experts()
EXPERT_S = EXPERTS.read_ms / 1e3
"""Reading one expert in each of 40 layers, at copy speed."""
STATE_S = 29e-6
"""Reading and writing one sequence's state, at copy speed."""


@dataclass(frozen=True)
class Doing:
    """What the GPUs of a node do now. ``running``: sequences of each. ``busy``: those that compute
    prompts. ``lenders``: those that share steps of others only while they have no sequences."""

    running: Sequence[int]
    busy: Collection[int] = ()
    lenders: Collection[int] = ()


class Steps(Protocol):
    def token_s(self, doing: Doing) -> list[float]:
        """Seconds from token to token at each worker."""

    def spreading(self, doing: Doing) -> set[int]:
        """The workers whose steps are spread."""


@dataclass(frozen=True)
class Local:
    """Steps that each worker computes alone. ``step_s``: by number of sequences. With drafts, each
    sequence has ``rows_a_sequence`` in a step and gets ``tokens_a_step``. ``full_size``: the bytes
    of a step are known, as those of the full-size model on an H200; ``expert_s``: reading one of
    its experts in each layer."""

    step_s: Curve
    rows_a_sequence: int = 1
    tokens_a_step: float = 1.0
    full_size: bool = True
    expert_s: float = EXPERT_S
    _known: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def token_s(self, doing: Doing) -> list[float]:
        return [self.of(n) / self.tokens_a_step for n in doing.running]

    def spreading(self, doing: Doing) -> set[int]:
        return set()

    def of(self, num_sequences: int) -> float:
        """Seconds of a step. Between measured sizes, only the part beyond the bytes of experts and
        states is taken as linear: the step itself flattens as rows share experts."""
        if num_sequences not in self._known:
            beyond = [(n, seconds - self._bytes_s(n)) for n, seconds in self.step_s]
            step_s = self._bytes_s(num_sequences) + between(beyond, num_sequences)
            self._known[num_sequences] = step_s
        return self._known[num_sequences]

    def _bytes_s(self, num_sequences: float) -> float:
        if not self.full_size:
            return 0.0
        num_experts = EXPERTS.distinct(num_sequences * self.rows_a_sequence)
        return self.expert_s * num_experts + STATE_S * num_sequences


@dataclass(frozen=True)
class Slower:
    """``steps``, if each took ``factor`` times as long."""

    steps: Steps
    factor: float

    def token_s(self, doing: Doing) -> list[float]:
        return [self.factor * each for each in self.steps.token_s(doing)]

    def spreading(self, doing: Doing) -> set[int]:
        return self.steps.spreading(doing)


@dataclass(frozen=True)
class Spread:
    """Steps that groups of at most ``MAX_MEMBERS`` workers, in order, compute together (``--spread
    auto``): by ``table`` they take such a part of local steps. A worker that decodes and computes
    prompts now makes its whole group take local steps; real ones begin prompts in the same rounds
    (docs/spread.md)."""

    local: Local
    table: StepTable = field(default_factory=shipped)

    def token_s(self, doing: Doing) -> list[float]:
        paces = self.local.token_s(doing)
        for decoding, step_s in self._groups(doing):
            for i in decoding:
                paces[i] = step_s / self.local.tokens_a_step
        return paces

    def spreading(self, doing: Doing) -> set[int]:
        return {i for decoding, _ in self._groups(doing) for i in decoding}

    def _groups(self, doing: Doing) -> Iterator[tuple[list[int], float]]:
        """The workers that decode in each group that spreads its steps, and the step's seconds."""
        running, lenders = doing.running, doing.lenders
        for first in range(0, len(running), MAX_MEMBERS):
            group = range(first, min(first + MAX_MEMBERS, len(running)))
            decoding = [i for i in group if i not in lenders]
            free = [i for i in group if i in lenders and not running[i] and i not in doing.busy]
            members, rows = len(decoding) + len(free), [running[i] for i in decoding]
            if members < 2 or not any(rows) or any(i in doing.busy for i in decoding):
                continue
            step_s = self._together_s(rows, members)
            rate = sum(n / self.local.of(n) for n in rows if n)
            if sum(rows) / step_s >= ENTERS_FROM[self.table.source_of(members)] * rate:
                yield decoding, step_s

    def _together_s(self, rows: Sequence[int], members: int) -> float:
        """Seconds of one step; ``rows``: the sequences of each member that decodes."""
        most, drafts = max(rows), self.local.rows_a_sequence - 1
        if most * (1 + drafts) > MAX_ROWS or not self.table.has(members, drafts):
            return inf
        ms = self.table.spread_ms(members, most, drafts, sum(rows) * (1 + drafts))
        return self.local.of(most) * ms / self.table.local_ms(most, drafts)
