"""How long a decode step takes: on one GPU by its measured table, or spread over several by bytes.
Pure.

The table is of one GPU with sequences of 1,024 to 2,048 tokens. A spread step has never been
measured; ``Spread`` computes it from what was:

    step = local step of the member's own rows
           - bytes of the experts that these rows choose
           + bytes of a member's share of the experts that the rows of all members choose
           + the exchanges between members
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from decode.spread_policy import ENTERS_FROM
from decode.spread_table import Curve, Experts, between
from transport.wire.spread import MAX_MEMBERS

EXPERTS = Experts()
EXPERT_S = EXPERTS.read_ms / 1e3
"""Reading one expert in each of 40 layers, at copy speed."""
STATE_S = 29e-6
"""Reading and writing one sequence's state, at copy speed."""
EXCHANGES = 80
EXCHANGE_US: Mapping[int, Curve] = {
    2: ((1, 3.0), (16, 3.4), (32, 3.7)),
    3: ((1, 3.4), (8, 3.7), (16, 4.1), (32, 4.9)),
    4: ((1, 3.6), (4, 3.8), (8, 4.1), (16, 4.7), (32, 6.1)),
}
"""By members: of one exchange, over the rows of a member. Measured between four H200s, LL protocol,
plain kernels in one process; the raw output is not in this repository. ``exchange_us`` goes on from
there."""


def exchange_us(members: int, rows: float) -> float:
    """Of more than four members as much more for each as four take more than three.

    >>> [round(exchange_us(members, 16), 1) for members in (3, 4, 8)]
    [4.1, 4.7, 7.1]
    """
    measured = min(members, 4)
    own = between(EXCHANGE_US[measured], rows)
    if members == measured:
        return own
    return own + (members - 4) * (own - between(EXCHANGE_US[3], rows))


class Steps(Protocol):
    def token_s(self, running: Sequence[int], busy: Collection[int]) -> list[float]:
        """Seconds from token to token of a sequence at each worker, by how many sequences each has.
        Those of ``busy`` compute prompts now."""


@dataclass(frozen=True)
class Local:
    """Each worker by itself. ``step_s`` is over sequences. With drafts a step has
    ``rows_a_sequence`` and gives ``tokens_a_step`` of each sequence. ``full_size``: the bytes of a
    step are known, those of the full-size model on an H200."""

    step_s: Curve
    rows_a_sequence: int = 1
    tokens_a_step: float = 1.0
    full_size: bool = True

    def token_s(self, running: Sequence[int], busy: Collection[int]) -> list[float]:
        return [self.of(n) / self.tokens_a_step for n in running]

    def of(self, num_sequences: int) -> float:
        """A step's seconds. Between measured sizes, what the step takes beyond the bytes of its
        experts and states is linear, not the step: a curve that flattens as rows share experts."""
        beyond = [(n, seconds - self._bytes_s(n)) for n, seconds in self.step_s]
        return self._bytes_s(num_sequences) + between(beyond, num_sequences)

    def _bytes_s(self, num_sequences: float) -> float:
        if not self.full_size:
            return 0.0
        num_experts = EXPERTS.distinct(num_sequences * self.rows_a_sequence)
        return EXPERT_S * num_experts + STATE_S * num_sequences


@dataclass(frozen=True)
class Spread:
    """Groups of at most ``MAX_MEMBERS`` workers, in order, compute steps together where they would
    begin to by these estimates (decode/spread_policy.py), while none of them computes prompts.
    Prefill workers lend nothing here (docs/spread.md, "Lenders")."""

    local: Local

    def token_s(self, running: Sequence[int], busy: Collection[int]) -> list[float]:
        alone = self.local.token_s(running, busy)
        for first in range(0, len(running), MAX_MEMBERS):
            group = range(first, min(first + MAX_MEMBERS, len(running)))
            rows = [running[i] for i in group]
            if len(group) < 2 or any(i in busy for i in group):
                continue
            together_s = self.together_s(rows) / self.local.tokens_a_step
            rates = [n / alone[i] for n, i in zip(rows, group, strict=True)]
            if sum(rows) / together_s >= ENTERS_FROM["estimated"] * sum(rates):
                alone[group.start : group.stop] = [together_s] * len(group)
        return alone

    def together_s(self, rows: Sequence[int]) -> float:
        """One step of members that have so many rows each: the member with most is the slowest."""
        most, members, tokens = max(rows), len(rows), self.local.rows_a_sequence
        own = EXPERT_S * EXPERTS.distinct(most * tokens)
        share = EXPERT_S * EXPERTS.distinct(sum(rows) * tokens) / members
        exchange = EXCHANGES * exchange_us(members, most * tokens) / 1e6
        return self.local.of(most) - own + share + exchange
