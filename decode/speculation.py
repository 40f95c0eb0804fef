"""How many drafts the next step makes for each sequence: as many as pay at this load.

Pure. A step with K drafts costs ``costs[K]`` plain steps and gives 1 + p_1 + … + p_K tokens, where
p_i is how often the first i drafts of a sequence were all accepted. The best K has the most tokens
for its cost. Where none pays a step only writes the draft layer's KV, so that any later one can
draft. If that is because drafts are refused, they are tried again, after longer and longer pauses.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import MAX_DRAFTS

ASSUMED = 0.8
"""Of drafts, before any was verified: what this family's draft layer reaches."""
ASSUMED_WEIGHT = 3.0
"""In drafts: four refused ones and no accepted one are enough for a sequence alone to stop."""
CAUTION = 8
"""Drafts to be verified, since the start or a pause, for each draft more than one."""
FADE = 1.0 - 1.0 / 2048.0
"""What an outcome counts for when the next one comes."""
GAIN = 1.02
"""A larger K must promise so many times the tokens a second."""
MIN_PAUSE, MAX_PAUSE = 512, 4096
"""Steps until refused drafts are tried again. A trial costs about three plain steps, so each pause
is twice as long as the one before it."""
LASTING = 1024
"""Drafts: with more of them between two pauses, the next pause is the shortest again."""
AUTO_DRAFTS = {"cpu": 4, "cuda": 3}
"""The most that ``auto`` makes: each has graphs of its own on CUDA."""
COSTS: dict[str, dict[int, tuple[float, ...]]] = {
    "cpu": {
        1: (1.85, 2.34, 2.77, 3.11),
        2: (1.82, 2.23, 2.59, 2.90),
        4: (1.69, 2.13, 2.51, 2.88),
        8: (1.77, 2.29, 2.87, 3.24),
        16: (2.08, 2.67, 3.15, 3.83),
    },
    "cuda": {
        1: (1.34, 1.63, 1.91),
        2: (1.37, 1.73, 2.09),
        4: (1.48, 1.90, 2.29),
        8: (1.51, 1.94, 2.29),
        16: (1.47, 1.81, 2.04),
        32: (1.35, 1.56, 1.70),
        64: (1.22, 1.36, 1.50),
        96: (1.16, 1.33, 1.51),
        128: (1.17, 1.36, 1.58),
    },
}
"""What a step with 1, 2, … drafts takes, in plain steps, by sequences. cpu: the bundled model on
one thread; cuda: the full size on one H200 (cpu-drafts.json, h200-drafts.json and
h200-drafts-128.json in bench/results)."""


def max_drafts(setting: str, device: str) -> int:
    """The most drafts under ``auto``, ``off`` or a number; raises ValueError naming the setting."""
    if setting in ("auto", "off"):
        return AUTO_DRAFTS[device] if setting == "auto" else 0
    if not (setting.isdecimal() and 1 <= int(setting) <= MAX_DRAFTS):
        raise ValueError(f"speculate: {setting!r} is not auto, off or a number up to {MAX_DRAFTS}")
    return int(setting)


def draft_policy(setting: str, num_drafts: int, device: str) -> "DraftPolicy":
    """Of an engine that makes up to ``num_drafts``, 0 where it has no draft layer."""
    if not num_drafts:
        return NoDrafts()
    if setting != "auto":
        return FixedDrafts(num_drafts)
    return AutoDrafts(num_drafts, COSTS[device])


class DraftPolicy(Protocol):
    """What the scheduler asks."""

    @property
    def choices(self) -> tuple[int, ...]:
        """The numbers that it may choose."""
        ...

    @property
    def rate(self) -> float:
        """How often a draft is accepted whose predecessors were, about."""
        ...

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """The next steps are spread ones, in which 1, 2, … drafts cost so much; None: local."""
        ...

    def num_next(self, num_sequences: int) -> int:
        """Drafts that a step of so many sequences makes for the next one. Asked once a step."""
        ...

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence's step had so many drafts, of which so many were accepted."""
        ...


class NoDrafts:
    """For an engine without a draft layer."""

    choices = (0,)
    rate = 0.0

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """Nothing is chosen."""

    def num_next(self, num_sequences: int) -> int:
        return 0

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """Nothing was drafted."""


@dataclass
class FixedDrafts:
    """Always as many, whatever becomes of them."""

    num: int
    rate = ASSUMED

    @property
    def choices(self) -> tuple[int, ...]:
        return (self.num,)

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """It makes no difference."""

    def num_next(self, num_sequences: int) -> int:
        return self.num

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """It makes no difference."""


class Acceptance:
    """How often a draft is accepted whose predecessors were, by position, the latest counting most.
    A position with little evidence is taken to be like the one before it."""

    def __init__(self, max_drafts: int) -> None:
        self.num_noted = 0
        self._accepted, self._verified = [0.0] * max_drafts, [0.0] * max_drafts

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence's step had so many drafts, of which the first ``num_accepted`` were
        accepted. What was noted before fades, also of positions that had none."""
        if not num_drafts:
            return
        self.num_noted += 1
        for i in range(len(self._verified)):
            self._accepted[i] = self._accepted[i] * FADE + (i < num_accepted)
            self._verified[i] = self._verified[i] * FADE + (i < num_drafts and i <= num_accepted)

    def rates(self) -> list[float]:
        """p_1, p_2, …: how often the first 1, 2, … drafts are all accepted."""
        rates, all_before, like = [], 1.0, ASSUMED
        for accepted, verified in zip(self._accepted, self._verified, strict=True):
            like = (accepted + ASSUMED_WEIGHT * like) / (verified + ASSUMED_WEIGHT)
            all_before *= like
            rates.append(all_before)
        return rates


class AutoDrafts:
    """The K that pays best. ``costs``: by the number of sequences, what a step with 1, 2, … drafts
    takes, in plain steps; for other numbers that of the next larger one counts, and none pays with
    more sequences than the largest."""

    def __init__(self, max_drafts: int, costs: Mapping[int, Sequence[float]]) -> None:
        self.acceptance = Acceptance(max_drafts)
        self._assumed = self.acceptance.rates()
        self._costs = dict(sorted(costs.items()))
        self._sizes = list(self._costs)
        self._max_drafts = max_drafts
        self._pause = MIN_PAUSE
        self._num_paused = 0
        self._spread_costs: Sequence[float] | None = None
        self.choices = tuple(range(max_drafts + 1))

    @property
    def rate(self) -> float:
        return self.acceptance.rates()[0]

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        self._spread_costs = costs

    def num_next(self, num_sequences: int) -> int:
        spread = self._spread_costs
        costs = self._costs_of(num_sequences) if spread is None else spread[: self._max_drafts]
        best = best_num(costs, self.acceptance.rates())
        if best:
            return min(best, 1 + self.acceptance.num_noted // CAUTION)
        if best_num(costs, self._assumed):
            self._wait()
        return 0

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        self.acceptance.note(num_drafts, num_accepted)

    def _wait(self) -> None:
        """A step went by without drafts because they are refused; after a pause of such steps begin
        again with what is assumed."""
        self._num_paused += 1
        if self._num_paused < self._pause:
            return
        paid = self.acceptance.num_noted >= LASTING
        self._pause = MIN_PAUSE if paid else min(2 * self._pause, MAX_PAUSE)
        self._num_paused = 0
        self.acceptance = Acceptance(self._max_drafts)

    def _costs_of(self, num_sequences: int) -> Sequence[float]:
        place = bisect_left(self._sizes, num_sequences)
        if place == len(self._sizes):
            return ()
        return self._costs[self._sizes[place]][: self._max_drafts]


def best_num(costs: Sequence[float], rates: Sequence[float]) -> int:
    """Of no drafts, 1, 2, …, which cost 1 and ``costs``, the number with the most tokens for its
    cost; ``rates`` are p_1, p_2, …"""
    best, gain, tokens = 0, GAIN, 1.0
    for num, (cost, rate) in enumerate(zip(costs, rates, strict=False), 1):
        tokens += rate
        if tokens / cost > gain:
            best, gain = num, tokens / cost
    return best
