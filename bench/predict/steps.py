"""The time of a decode step: on one GPU by its measured table, or spread over several by bytes.
Pure.

The table is of one GPU with sequences of 1,024 to 2,048 tokens. ``Spread`` does not use measured
spread steps; it computes them:

    step = local step of the member's own rows
           - bytes of the experts that these rows choose
           + bytes of a member's share of the experts that the rows of all members choose
           + the exchanges between members
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
"""µs of one exchange over the rows of a member, by number of members. Measured between four H200s
with the LL protocol and plain kernels in one process; the raw output is not in this repository.
``exchange_us`` extrapolates."""


def exchange_us(members: int, rows: float) -> float:
    """µs of one exchange. Each member beyond four adds what four take more than three.

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
        """Seconds from token to token at each worker, by its number of running sequences. The
        workers in ``busy`` compute prompts now."""


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

    def token_s(self, running: Sequence[int], busy: Collection[int]) -> list[float]:
        return [self.of(n) / self.tokens_a_step for n in running]

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

    def token_s(self, running: Sequence[int], busy: Collection[int]) -> list[float]:
        return [self.factor * each for each in self.steps.token_s(running, busy)]


@dataclass(frozen=True)
class Spread:
    """Steps that groups of at most ``MAX_MEMBERS`` workers, in order, compute together. They do so
    if these estimates would make them start (decode/spread_policy.py) and none of them computes
    prompts. Prefill workers lend nothing here (docs/spread.md)."""

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
        """Seconds of one step of members with these numbers of rows; the largest is the slowest."""
        most, members, tokens = max(rows), len(rows), self.local.rows_a_sequence
        own = EXPERT_S * EXPERTS.distinct(most * tokens)
        share = EXPERT_S * EXPERTS.distinct(sum(rows) * tokens) / members
        exchange = EXCHANGES * exchange_us(members, most * tokens) / 1e6
        return self.local.of(most) - own + share + exchange
