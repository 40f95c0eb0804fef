"""Chooses how many drafts the next step makes for each sequence: as many as pay at this load.

Pure. A step with K drafts costs ``costs[K]`` plain steps and gives 1 + p_1 + … + p_K tokens, where
p_i is how often the first i drafts of a sequence were all accepted. The best K has the most tokens
for its cost. If no K pays, a step only writes the draft layer's KV, so that any later step can
draft. If the reason is that drafts are rejected, they are tried again after ever longer pauses.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import MAX_DRAFTS

ASSUMED = 0.8
"""The acceptance rate assumed before any draft was verified: what this family's draft layer
reaches."""
ASSUMED_WEIGHT = 3.0
"""Weight of the assumption, in drafts: four rejected drafts and no accepted one are enough for a
lone sequence to stop drafting."""
CAUTION = 8
"""Drafts to verify after the start or a pause for each draft beyond the first."""
FADE = 1.0 - 1.0 / 2048.0
"""Factor by which an outcome's weight falls with each later outcome."""
GAIN = 1.02
"""A larger K must promise this many times the tokens per second."""
MIN_PAUSE, MAX_PAUSE = 512, 4096
"""Steps until rejected drafts are tried again. A trial costs about three plain steps, so each pause
is twice as long as the previous one."""
LASTING = 1024
"""If more drafts than this were verified between two pauses, the next pause is the shortest one."""
AUTO_DRAFTS = {"cpu": 4, "cuda": 3}
"""The most drafts that ``auto`` makes: on CUDA each number has its own graphs."""
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
"""Cost of a step with 1, 2, … drafts in plain steps, by number of sequences. cpu: the bundled model
on one thread; cuda: the full size on one H200 (cpu-drafts.json, h200-drafts.json and
h200-drafts-128.json in bench/results)."""


def max_drafts(setting: str, device: str) -> int:
    """The most drafts that a setting (``auto``, ``off`` or a number) allows; raises ValueError
    naming the setting."""
    if setting in ("auto", "off"):
        return AUTO_DRAFTS[device] if setting == "auto" else 0
    if not (setting.isdecimal() and 1 <= int(setting) <= MAX_DRAFTS):
        raise ValueError(f"speculate: {setting!r} is not auto, off or a number up to {MAX_DRAFTS}")
    return int(setting)


def draft_policy(setting: str, num_drafts: int, device: str) -> "DraftPolicy":
    """The policy of an engine that makes up to ``num_drafts`` drafts; 0: it has no draft layer."""
    if not num_drafts:
        return NoDrafts()
    if setting != "auto":
        return FixedDrafts(num_drafts)
    return AutoDrafts(num_drafts, COSTS[device])


class DraftPolicy(Protocol):
    """Chooses the number of drafts; the scheduler asks it."""

    @property
    def choices(self) -> tuple[int, ...]:
        """The numbers of drafts that the policy may choose."""
        ...

    @property
    def rate(self) -> float:
        """Estimated probability that a draft is accepted if all drafts before it were."""
        ...

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """Set the costs of 1, 2, … drafts in the next steps, which are spread steps; None: the next
        steps are local."""
        ...

    def num_next(self, num_sequences: int) -> int:
        """Number of drafts that a step of ``num_sequences`` makes for the next step. Called once
        per step."""
        ...

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """Note one sequence's step: ``num_accepted`` of its ``num_drafts`` drafts were accepted."""
        ...


class NoDrafts:
    """The policy of an engine without a draft layer."""

    choices = (0,)
    rate = 0.0

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """No effect: there are no drafts."""

    def num_next(self, num_sequences: int) -> int:
        return 0

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """No effect: there are no drafts."""


@dataclass
class FixedDrafts:
    """A policy that always makes the same number of drafts."""

    num: int
    rate = ASSUMED

    @property
    def choices(self) -> tuple[int, ...]:
        return (self.num,)

    def set_spread_costs(self, costs: Sequence[float] | None) -> None:
        """No effect: the number of drafts is fixed."""

    def num_next(self, num_sequences: int) -> int:
        return self.num

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """No effect: the number of drafts is fixed."""


class Acceptance:
    """Estimates by position how often a draft is accepted if all drafts before it were. Recent
    outcomes count most. A position with little evidence is assumed to be like the previous one."""

    def __init__(self, max_drafts: int) -> None:
        self.num_noted = 0
        self._accepted, self._verified = [0.0] * max_drafts, [0.0] * max_drafts

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """Note one sequence's step: the first ``num_accepted`` of ``num_drafts`` drafts were
        accepted. Earlier outcomes fade, also at positions without a draft in this step."""
        if not num_drafts:
            return
        self.num_noted += 1
        for i in range(len(self._verified)):
            self._accepted[i] = self._accepted[i] * FADE + (i < num_accepted)
            self._verified[i] = self._verified[i] * FADE + (i < num_drafts and i <= num_accepted)

    def rates(self) -> list[float]:
        """p_1, p_2, …: probabilities that the first 1, 2, … drafts are all accepted."""
        rates, all_before, like = [], 1.0, ASSUMED
        for accepted, verified in zip(self._accepted, self._verified, strict=True):
            like = (accepted + ASSUMED_WEIGHT * like) / (verified + ASSUMED_WEIGHT)
            all_before *= like
            rates.append(all_before)
        return rates


class AutoDrafts:
    """A policy that chooses the K that pays best. ``costs``: by number of sequences, the cost of a
    step with 1, 2, … drafts in plain steps. Other numbers of sequences have the costs of the next
    larger one; beyond the largest no draft pays."""

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
        """Count a step without drafts because they are rejected; after a pause of such steps, start
        again with the assumed acceptance rate."""
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
    """The number of drafts with the most tokens for its cost. No draft costs 1, and 1, 2, … drafts
    cost ``costs``; ``rates`` are p_1, p_2, …"""
    best, gain, tokens = 0, GAIN, 1.0
    for num, (cost, rate) in enumerate(zip(costs, rates, strict=False), 1):
        tokens += rate
        if tokens / cost > gain:
            best, gain = num, tokens / cost
    return best
