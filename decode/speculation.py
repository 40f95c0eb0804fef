"""How many drafts the next step makes for each sequence: as many as pay at this load.

Pure. A step with K drafts costs ``costs[K]`` plain steps and gives 1 + p_1 + … + p_K tokens, where
p_i is how often the first i drafts of a sequence were all accepted. The best K has the most tokens
for its cost. Where none pays the draft layer is not computed at all; if that is because drafts are
refused, new sequences try it again from time to time.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.config import MAX_DRAFTS

ASSUMED = 0.8
"""Of drafts, before any was verified: what this family's draft layer reaches."""
ASSUMED_WEIGHT = 32.0
MEMORY = 2048.0
"""Drafts after which an old outcome counts for 1 / e."""
GAIN = 1.02
"""A larger K must promise so many times the tokens a second."""
TRIAL_EVERY, TRIAL_STEPS = 2048, 32
"""Steps: where drafts do not pay, one in so many begins a trial that lasts so long."""
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
        1: (1.36, 1.66, 1.95),
        2: (1.39, 1.75, 2.12),
        4: (1.49, 1.91, 2.31),
        8: (1.52, 1.96, 2.31),
        16: (1.48, 1.83, 2.06),
        32: (1.36, 1.58, 1.72),
        64: (1.23, 1.37, 1.52),
        96: (1.16, 1.33, 1.51),
        128: (1.17, 1.36, 1.58),
    },
}
"""What a step with 1, 2, … drafts takes, in plain steps, by sequences. cpu: the bundled model on
one thread; cuda: the full size on one H200 (cpu-drafts.json, h200-drafts.json and
h200-drafts-128.json in bench/results)."""


FOLLOWS = {"cpu": False, "cuda": True}
"""Whether the draft layer is computed in steps that are too large for drafts: 2.4 % of a step on an
H200, a fifth on a CPU. Without it the sequences of such a step would have no drafts ever after."""


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
    return AutoDrafts(num_drafts, COSTS[device], follows=FOLLOWS[device])


class DraftPolicy(Protocol):
    """What the scheduler asks."""

    def num_next(self, num_sequences: int) -> int | None:
        """Drafts that a step of so many sequences makes for the next one; None: do not compute the
        draft layer."""
        ...

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence's step had so many drafts, of which so many were accepted."""
        ...


class NoDrafts:
    """For an engine without a draft layer."""

    def num_next(self, num_sequences: int) -> int | None:
        return None

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """Nothing was drafted."""


@dataclass
class FixedDrafts:
    """Always as many, whatever becomes of them."""

    num: int

    def num_next(self, num_sequences: int) -> int | None:
        return self.num

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """It makes no difference."""


@dataclass
class Acceptance:
    """How often the first i drafts of a sequence were all accepted, the latest counting most."""

    max_drafts: int
    _accepted: list[float] = field(init=False)
    _verified: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._accepted = [ASSUMED_WEIGHT * ASSUMED**i for i in range(1, self.max_drafts + 1)]
        self._verified = [ASSUMED_WEIGHT] * self.max_drafts

    def note(self, num_drafts: int, num_accepted: int) -> None:
        for i in range(num_drafts):
            fade = 1.0 - 1.0 / MEMORY
            self._accepted[i] = self._accepted[i] * fade + (num_accepted > i)
            self._verified[i] = self._verified[i] * fade + 1.0

    def rates(self) -> list[float]:
        """p_1, p_2, …; never rising, as a later draft needs all before it."""
        rates, least = [], 1.0
        for accepted, verified in zip(self._accepted, self._verified, strict=True):
            least = min(least, accepted / verified)
            rates.append(least)
        return rates


class AutoDrafts:
    """The K that pays best. ``costs``: by the number of sequences, what a step with 1, 2, … drafts
    takes, in plain steps; for other numbers that of the next larger one counts. ``follows``: the
    draft layer is computed all the same where drafts do not pay for so many sequences."""

    def __init__(
        self, max_drafts: int, costs: Mapping[int, Sequence[float]], *, follows: bool = False
    ) -> None:
        self.acceptance = Acceptance(max_drafts)
        self._costs = dict(sorted(costs.items()))
        self._sizes = list(self._costs)
        self._max_drafts = max_drafts
        self._num_refusing = 0
        self._too_large = 0 if follows else None

    def num_next(self, num_sequences: int) -> int | None:
        best = self._best(num_sequences)
        if best:
            return best
        if any(self._best(size) for size in self._sizes):
            return self._too_large
        in_period = self._num_refusing % TRIAL_EVERY
        self._num_refusing += 1
        return 1 if in_period >= TRIAL_EVERY - TRIAL_STEPS else None

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        self.acceptance.note(num_drafts, num_accepted)

    def _best(self, num_sequences: int) -> int:
        place = bisect_left(self._sizes, num_sequences)
        if place == len(self._sizes):
            return 0
        best, gain, tokens = 0, GAIN, 1.0
        costs = self._costs[self._sizes[place]][: self._max_drafts]
        for num, (cost, rate) in enumerate(zip(costs, self.acceptance.rates(), strict=False), 1):
            tokens += rate
            if tokens / cost > gain:
                best, gain = num, tokens / cost
        return best
