"""Decides how many workers compute prompts while the others decode. Pure: no clock, no sockets.

Each possible size of the pools has a cost, the larger of the first share of a target and the square
of the second:

    time to first token   what waits to be computed, and what comes beyond the speed of the prefill
                          workers, over that speed; longer when they are busy most of the time
    time a token          the step of as many sequences as each decode worker would have

With no prefill worker all workers do both, as colocated ones do: prompts are computed beside steps,
and an answer waits for those that come meanwhile. Some answers meet many, so the mean time a token
has to be below ``TOGETHER_SHARE`` of its target. Not so in a *pair*: two workers that compute their
steps together (docs/spread.md) also compute prompts at the same time, which have been gathered for
both (soft_pools.py). While these take little of the time a token, all answers have about the same.

A size is fine while its cost is at most ``FINE``. If the present size is not, the pools move
towards the size that costs least now. If it is, but would not have been at the worst time lately,
they move towards the size that would have cost least then: the next burst finds the pools ready. If
it would have been, they move towards the size with the shortest steps, in the mean of some seconds,
of those that would. A pair turns to one prefill worker only if it is not fine without, and back for
shorter steps if it would be fine in the mean of some seconds too.

They move by one worker at a time, or to or from none. Hysteresis: not within ``HOLD_S`` of the last
change, not back within ``BACK_S``, not for a gain below ``GAIN`` or, in steps alone, below
``STEP_GAIN``, and from none only for what was better at the worst time.
"""

from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Protocol

LOOK_S = 0.25
"""How often the policy is asked."""
HOLD_S, BACK_S = 0.5, 1.0
GAIN = 0.15
STEP_GAIN = 0.05
"""The share by which steps have to become shorter for a change that is made for nothing else."""
FINE = 0.8
LEAST = 0.05
"""What costs less is not worth a change."""
MEMORY_S = 120.0
"""How long the worst time counts; half of its cost is forgotten in 83 seconds."""
STEPS_S = 10.0
"""Over how long steps are averaged: a burst says little about the steps behind it."""
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
class PoolTargets:
    """What a request shall keep, in seconds. Raises ValueError."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _require_time(name, value)

    @classmethod
    def of_ms(cls, ttft_ms: float, tpot_ms: float, *, names: tuple[str, str]) -> "PoolTargets":
        """Targets in milliseconds. Raises ValueError with a setting's name, of ``names``."""
        for name, value in zip(names, (ttft_ms, tpot_ms), strict=True):
            _require_time(name, value)
        return cls(ttft_ms / 1e3, tpot_ms / 1e3)


def _require_time(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise ValueError(f"{name}: {value} is not a time above 0")


@dataclass(frozen=True)
class PoolLoad:
    """What the pools have to do now. ``tokens_waiting``: prompt tokens that are not computed yet.
    ``tokens_arrived``: prompt tokens to compute that came since the last decision. ``in_pair``: the
    workers are two, and compute steps together."""

    num_prefill: int
    num_decode: int
    tokens_waiting: int
    tokens_arrived: int
    num_sequences: int
    in_pair: bool = False


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


class PoolPolicy:
    """Decides from one load to the next, by the ``speeds`` of the node."""

    def __init__(self, targets: PoolTargets, speeds: Speeds) -> None:
        self._targets, self._speeds = targets, speeds
        self._arrivals_tok_s = 0.0
        self._worst: dict[int, float] = {}
        """The highest cost of each size lately."""
        self._steps: dict[int, float] = {}
        """The mean time a token of each size lately, as a share of its target."""
        self._steps_weight = 0.0
        self._together_mean = 0.0
        """What the time a token counts as where all workers do both, in the mean."""
        self._noted_at = -inf
        self._decided_at: float | None = None
        self._changed_at = -inf
        self._left = -1
        """The number of prefill workers before the last change."""
        self.why = ""
        """The reason of the last change, for people."""

    def decide(self, load: PoolLoad, now: float) -> int:
        """How many workers shall compute prompts; 0: all do both."""
        self._average(load.tokens_arrived, now)
        present, number = load.num_prefill, load.num_prefill + load.num_decode
        if now - self._changed_at < HOLD_S or not self._speeds.prefill_tok_s():
            return present
        shares = {size: self._shares(load, size) for size in range(number)}
        costs = {size: _cost(*each) for size, each in shares.items()}
        ttft, tpot = shares[0]
        together = self._together(load, tpot)
        costs[0] = _cost(ttft, together)
        self._note(costs, {size: step for size, (_, step) in shares.items()}, together, now)
        compared, reason, gain = costs, self._prediction(load, *shares[present]), GAIN
        if load.in_pair:
            if costs[present] <= FINE:
                if not present or _cost(0.0, self._together_mean) > FINE:
                    return present
                compared, reason, gain = self._by_steps(present, costs)
        elif costs[present] <= FINE or not present:
            compared, reason, gain = self._lately(present, costs)
        best = min(compared, key=lambda size: (round(compared[size], 3), abs(size - present)))
        most = (1 - gain) * compared[present]
        if best == present or compared[best] > most or compared[present] < LEAST:
            return present
        wanted = best
        if best and present:
            wanted = present + (1 if best > present else -1)
        if wanted == self._left and now - self._changed_at < BACK_S:
            return present
        self.why = f"{present} → {wanted} prefill: {reason}"
        self._changed_at, self._left = now, present
        return wanted

    def _lately(self, present: int, costs: dict[int, float]) -> tuple[dict[int, float], str, float]:
        """What the sizes are compared by that are fine now, or cost no more than the present one;
        why; and the least gain."""
        worst, most = self._worst, max(FINE, costs[present])
        if worst[present] <= FINE:
            return self._by_steps(present, worst)
        reason = f"ready for the worst load of the last minutes, which took {worst[present]:.0%}"
        lately = {n: worst[n] for n, cost in costs.items() if cost <= most}
        return lately, f"{reason} of a target", GAIN

    def _by_steps(
        self, present: int, costs: dict[int, float]
    ) -> tuple[dict[int, float], str, float]:
        """The steps of the sizes that are fine by ``costs``, why they count, and the least gain."""
        steps = {n: step for n, step in self._steps.items() if costs[n] <= FINE}
        step_ms = 1e3 * steps[present] * self._targets.tpot_s
        return steps, f"shorter steps than {step_ms:.1f} ms", STEP_GAIN

    def _note(
        self, costs: dict[int, float], steps: dict[int, float], together: float, now: float
    ) -> None:
        passed_s = now - self._noted_at
        self._noted_at = now
        self._worst = _larger(costs, self._worst, exp(-passed_s / MEMORY_S))
        self._steps_weight = 1 + self._steps_weight * exp(-passed_s / STEPS_S)
        self._together_mean += (together - self._together_mean) / self._steps_weight
        self._steps = _averaged(steps, self._steps, self._steps_weight)

    def _prediction(self, load: PoolLoad, ttft: float, tpot: float) -> str:
        return (
            f"{load.tokens_waiting} tokens wait, predicted TTFT "
            f"{ttft * self._targets.ttft_s:.2f} s of {self._targets.ttft_s:g}, TPOT "
            f"{1e3 * tpot * self._targets.tpot_s:.1f} ms of {1e3 * self._targets.tpot_s:g}"
        )

    def _average(self, tokens_arrived: int, now: float) -> None:
        if self._decided_at is not None and now > self._decided_at:
            passed_s = now - self._decided_at
            newest = 1 - exp(-passed_s / ARRIVALS_S)
            self._arrivals_tok_s += newest * (tokens_arrived / passed_s - self._arrivals_tok_s)
        self._decided_at = now

    def _shares(self, load: PoolLoad, num_prefill: int) -> tuple[float, float]:
        """The predicted times with so many prefill workers, as shares of their targets."""
        number = load.num_prefill + load.num_decode
        speed = (num_prefill or SPEED_BESIDE * number) * self._speeds.prefill_tok_s()
        beyond = max(0.0, self._arrivals_tok_s - speed) * AHEAD_S
        busy = min(MOST_BUSY, self._arrivals_tok_s / speed)
        ttft_s = (load.tokens_waiting + beyond) / speed + PASS_S / (1 - busy)
        step_s = self._step_s(load, number - num_prefill)
        # Long prompts are not gathered, and so not computed at both workers at the same time.
        if load.in_pair and (num_prefill or self._speeds.prompt_len() >= LONG_PROMPT):
            step_s *= 1 + LOCAL_LONGER * busy
        if not num_prefill:
            step_s += self._beside_s(load, number)
        return ttft_s / self._targets.ttft_s, step_s / self._targets.tpot_s

    def _together(self, load: PoolLoad, tpot: float) -> float:
        """What the mean time a token counts as where all workers do both, as a share of its target:
        some answers meet more prompts than others."""
        if load.in_pair:
            prompt_s = self._speeds.prompt_len() / self._speeds.prefill_tok_s()
            short_len = SHORT_SHARE * self._speeds.answer_len()
            prompts_s = self._beside_s(load, 2) + prompt_s / short_len
            share = PAIR_BEGINS if load.num_prefill else PAIR_STAYS
            if prompts_s < share * self._targets.tpot_s:
                return tpot
        return tpot / TOGETHER_SHARE

    def _step_s(self, load: PoolLoad, num_decode: int) -> float:
        """The step of each of so many workers that decode all sequences; 0 without any."""
        rows = ceil(load.num_sequences / num_decode)
        return self._speeds.step_s(rows) if rows else 0.0

    def _beside_s(self, load: PoolLoad, number: int) -> float:
        """What prompts add to the time a token where all workers do both: those that wait, or come
        meanwhile, by the share of the time that they take."""
        speed = number * self._speeds.prefill_tok_s()
        busy = min(MOST_BUSY, self._arrivals_tok_s / speed)
        waiting_s = load.tokens_waiting / speed / self._speeds.answer_len()
        return max(waiting_s, self._step_s(load, number) * busy / (1 - busy))


def _larger(new: dict[int, float], old: dict[int, float], fade: float) -> dict[int, float]:
    """The new values, or what is left of the old ones where that is more."""
    return {size: max(value, fade * old.get(size, 0.0)) for size, value in new.items()}


def _averaged(new: dict[int, float], old: dict[int, float], weight: float) -> dict[int, float]:
    """The means of ``weight`` values so far, with the new ones."""
    means = {size: old.get(size, value) for size, value in new.items()}
    return {size: mean + (new[size] - mean) / weight for size, mean in means.items()}


def _cost(ttft: float, tpot: float) -> float:
    """The cost of a size of the pools by the shares of the targets that it takes; 1 at a target."""
    return max(ttft, tpot**TPOT_POWER)
