"""Predicts the times of requests with each size of the pools. Pure: no clock, no sockets.

    time to first token   what waits to be computed, and what comes beyond the speed of the prefill
                          workers, over that speed; longer when they are busy most of the time
    time a token          the step of as many sequences as each decode worker would have

With no prefill worker all workers do both, as colocated ones do: prompts are computed beside steps,
and an answer waits for those that come meanwhile. Some answers meet many, so the mean time a token
has to be below ``TOGETHER_SHARE`` of its target. Not so in a *pair*: two workers that compute their
steps together (docs/spread.md) also compute prompts at the same time, which have been gathered for
both (soft_pools.py). While these take little of the time a token, all answers have about the same.
"""

from dataclasses import dataclass
from math import ceil, exp
from typing import Protocol

from coordinator.core.pool_targets import PoolTargets

AHEAD_S = 1.0
"""What will have come beyond the speed of the prefill workers by then is counted as waiting."""
ARRIVALS_S = 5.0
"""Over how long the arrivals are averaged."""
PASS_S = 0.03
"""A prompt takes so long beside no others."""
MOST_BUSY = 0.98
SPEED_BESIDE = 0.7
"""How fast prompts are computed beside decode steps, as a share of the speed without them."""
TOGETHER_SHARE = 0.5
"""A mean time a token with such a share of its target costs workers that do both as much as all of
it costs pools."""
PAIR_BEGINS, PAIR_STAYS = 0.2, 0.35
"""A pair begins to do both, or goes on, while prompts take less than this share of the target of
the time a token, from a short answer."""
SHORT_SHARE = 0.125
"""A short answer has such a share of the tokens of the mean one, and waits for one prompt more."""
LONG_PROMPT = 4_096
"""Tokens from which on a prompt is computed about as fast alone as with others, so that it waits
for none."""
LOCAL_LONGER = 0.5
"""While one worker of a pair computes prompts, a step of the other one takes so much longer."""
TPOT_POWER = 2
"""Power of the share of the time a token in the cost of a size. It makes that share weigh less than
that of the first token below the targets: prompts come in bursts, and a step grows by less than its
sequences."""


@dataclass(frozen=True)
class PoolLoad:
    """What the pools have to do now. ``tokens_waiting``: prompt tokens that are not computed yet.
    ``tokens_arrived``: prompt tokens to compute that came since the last decision. ``in_pair``: the
    workers are two, and compute steps together. ``targets``: what the open requests shall keep;
    None: what all shall."""

    num_prefill: int
    num_decode: int
    tokens_waiting: int
    tokens_arrived: int
    num_sequences: int
    in_pair: bool = False
    targets: PoolTargets | None = None

    @property
    def num_workers(self) -> int:
        return self.num_prefill + self.num_decode


class Speeds(Protocol):
    """How fast the workers of a node are."""

    def prefill_tok_s(self) -> float:
        """Prompt tokens that a worker computes a second; 0: not known yet."""

    def new_tokens(self, num_tokens: int) -> int:
        """How many tokens of prompts are to be computed, and not reused, as earlier ones were."""

    def step_s(self, num_sequences: int) -> float:
        """Seconds of a decode step."""

    def answer_s(self) -> float:
        """Seconds from the first token of an answer to its last, in the mean."""

    def answer_len(self) -> float:
        """Tokens of an answer, in the mean."""

    def prompt_len(self) -> float:
        """Tokens of a prompt that are to be computed, in the mean."""


@dataclass(frozen=True)
class Times:
    """The times with one size of the pools, as shares of their targets: to the first token, and a
    token. ``counts_as``: as how much the second one counts."""

    ttft: float
    token: float
    counts_as: float

    @property
    def cost(self) -> float:
        """What the size costs by the larger of the shares; 1 at a target."""
        return max(self.ttft, token_cost(self.counts_as))


def token_cost(share: float) -> float:
    """What a share of the time a token costs."""
    return share**TPOT_POWER


class Forecast:
    """Predicts from one load to the next, by the ``speeds`` of the node."""

    def __init__(self, targets: PoolTargets, speeds: Speeds) -> None:
        self._targets, self._speeds = targets, speeds
        self._arrivals_tok_s = 0.0
        self._noted_at: float | None = None

    def note_arrivals(self, num_tokens: int, now: float) -> None:
        """Count the prompt tokens to compute that came since the last call."""
        if self._noted_at is not None and now > self._noted_at:
            passed_s = now - self._noted_at
            newest = 1 - exp(-passed_s / ARRIVALS_S)
            self._arrivals_tok_s += newest * (num_tokens / passed_s - self._arrivals_tok_s)
        self._noted_at = now

    def targets_of(self, load: PoolLoad) -> PoolTargets:
        """What the requests of a load shall keep."""
        return load.targets or self._targets

    def times(self, load: PoolLoad) -> list[Times]:
        """The times with each number of prefill workers, from none to all but one."""
        return [self._times(load, num_prefill) for num_prefill in range(load.num_workers)]

    def _times(self, load: PoolLoad, num_prefill: int) -> Times:
        number, targets = load.num_workers, self.targets_of(load)
        speed = (num_prefill or SPEED_BESIDE * number) * self._speeds.prefill_tok_s()
        beyond = max(0.0, self._arrivals_tok_s - speed) * AHEAD_S
        busy = self._busy(speed)
        ttft_s = (load.tokens_waiting + beyond) / speed + PASS_S / (1 - busy)
        step_s = self._step_s(load, number - num_prefill)
        # Long prompts are not gathered, and so not computed at both workers at the same time.
        if load.in_pair and (num_prefill or self._speeds.prompt_len() >= LONG_PROMPT):
            step_s *= 1 + LOCAL_LONGER * busy
        together = 1.0
        if not num_prefill:
            beside_s = self._beside_s(load)
            step_s += beside_s
            together = 1.0 if self._may_pair(load, beside_s) else TOGETHER_SHARE
        token = step_s / targets.tpot_s
        return Times(ttft_s / targets.ttft_s, token, token / together)

    def _may_pair(self, load: PoolLoad, beside_s: float) -> bool:
        """True if the workers are a pair, and prompts, which add ``beside_s`` to the mean time a
        token, would take little time from its short answers too."""
        if not load.in_pair:
            return False
        prompt_s = self._speeds.prompt_len() / self._speeds.prefill_tok_s()
        short_len = SHORT_SHARE * self._speeds.answer_len()
        prompts_s = beside_s + prompt_s / short_len
        share = PAIR_BEGINS if load.num_prefill else PAIR_STAYS
        return prompts_s < share * self.targets_of(load).tpot_s

    def _beside_s(self, load: PoolLoad) -> float:
        """What prompts add to the time a token where all workers do both: those that wait, or come
        meanwhile, by the share of the time that they take."""
        speed = load.num_workers * self._speeds.prefill_tok_s()
        busy = self._busy(speed)
        waiting_s = load.tokens_waiting / speed / self._speeds.answer_len()
        return max(waiting_s, self._step_s(load, load.num_workers) * busy / (1 - busy))

    def _step_s(self, load: PoolLoad, num_decode: int) -> float:
        """The step of each of so many workers that decode all sequences; 0 without any."""
        rows = ceil(load.num_sequences / num_decode)
        return self._speeds.step_s(rows) if rows else 0.0

    def _busy(self, speed: float) -> float:
        """The share of the time that prompts take at such a speed."""
        return min(MOST_BUSY, self._arrivals_tok_s / speed)
