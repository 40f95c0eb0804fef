"""Decides how many workers compute prompts while the others decode. Pure: no clock, no sockets.

Each possible size of the pools has a cost: the larger of the share of the target that the time to
the first token would take, and the square of that of the time a token (pool_forecast.py). With no
prefill worker all workers do both.

A size is fine while its cost is at most ``FINE``. If the present size is not, the pools move
towards the size that costs least now. If it is, but would not have been at the worst time lately,
they move towards the size that would have cost least then: the next burst finds the pools ready. If
it would have been, or if that was a load that no size serves in time, they move towards the size
with the shortest steps, in the mean of some seconds, of those that are fine. A pair turns to one
prefill worker only if it is not fine without, and back for shorter steps if it would be fine in the
mean of some seconds too.

If prompts would wait with every size for a multiple of the target, no request is in time, and none
can be: all workers do both until the wait is down to the target, as they compute most so.

They move by one worker at a time, or to or from none. Hysteresis: not within ``HOLD_S`` of the last
change, not back within ``BACK_S``, not for a gain below ``GAIN`` or, in steps alone, below
``STEP_GAIN``, and from none only for what was better at the worst time.
"""

from math import exp, inf

from coordinator.core.pool_forecast import Forecast, PoolLoad, Speeds, Times, token_cost
from coordinator.core.pool_targets import PoolTargets

LOOK_S = 0.25
"""How often the policy is asked."""
HOLD_S, BACK_S = 0.5, 1.0
GAIN = 0.15
STEP_GAIN = 0.05
"""The share by which steps have to become shorter for a change that is made for nothing else."""
FINE = 0.8
LEAST = 0.05
"""What costs less is not worth a change."""
OVERLOADED, RELIEVED = 2.0, 1.0
"""Multiples of the target of the first token: the load is too much when prompts would wait for
longer than the first with each size, until they wait for less than the second with some size."""
FUTILE = 1.5
"""More than two workers are not kept ready for a load that cost more than this with every size, so
that none was in time. Of two workers half decode anyway, and a turn costs more."""
MEMORY_S = 120.0
"""How long the worst time counts; half of its cost is forgotten in 83 seconds."""
STEPS_S = 10.0
"""Over how long steps are averaged: a burst says little about the steps behind it."""


class PoolPolicy:
    """Decides from one load to the next, by the ``speeds`` of the node."""

    def __init__(self, targets: PoolTargets, speeds: Speeds) -> None:
        self._speeds = speeds
        self._forecast = Forecast(targets, speeds)
        self._worst: dict[int, float] = {}
        """The highest cost of each size lately."""
        self._steps: dict[int, float] = {}
        """The mean time a token of each size lately, as a share of its target."""
        self._steps_weight = 0.0
        self._together = 0.0
        """What the time a token counts as where all workers do both, in the mean."""
        self._noted_at = -inf
        self._changed_at = -inf
        self._left = -1
        """The number of prefill workers before the last change."""
        self._overloaded = False
        self.why = ""
        """The reason of the last change, for people."""

    def decide(self, load: PoolLoad, now: float) -> int:
        """How many workers shall compute prompts; 0: all do both."""
        self._forecast.note_arrivals(load.tokens_arrived, now)
        present = load.num_prefill
        if now - self._changed_at < HOLD_S or not self._speeds.prefill_tok_s():
            return present
        times = self._forecast.times(load)
        costs = {size: each.cost for size, each in enumerate(times)}
        self._note(times, costs, now)
        shortest = min(each.ttft for each in times)
        self._overloaded = shortest > (RELIEVED if self._overloaded else OVERLOADED)
        if self._overloaded:
            return self._changed(load, 0, self._prediction(load, times[present]), now)
        compared, reason, gain = costs, self._prediction(load, times[present]), GAIN
        if load.in_pair:
            if costs[present] <= FINE:
                if not present or token_cost(self._together) > FINE:
                    return present
                compared, reason, gain = self._by_steps(load, costs)
        elif costs[present] <= FINE or not present:
            compared, reason, gain = self._lately(load, costs)
        best = min(compared, key=lambda size: (round(compared[size], 3), abs(size - present)))
        most = (1 - gain) * compared[present]
        if best == present or compared[best] > most or compared[present] < LEAST:
            return present
        wanted = best
        if best and present:
            wanted = present + (1 if best > present else -1)
        return self._changed(load, wanted, reason, now)

    def _changed(self, load: PoolLoad, wanted: int, reason: str, now: float) -> int:
        """The size after a change to the ``wanted`` one, which may be too early."""
        present = load.num_prefill
        too_early = wanted == self._left and now - self._changed_at < BACK_S
        if wanted == present or too_early:
            return present
        self.why = f"{present} → {wanted} prefill: {reason}"
        self._changed_at, self._left = now, present
        return wanted

    def _lately(
        self, load: PoolLoad, costs: dict[int, float]
    ) -> tuple[dict[int, float], str, float]:
        """What the sizes are compared by that are fine now, or cost no more than the present one;
        why; and the least gain."""
        present, worst = load.num_prefill, self._worst
        most = max(FINE, costs[present])
        if worst[present] <= FINE:
            return self._by_steps(load, worst)
        if len(costs) > 2 and costs[present] <= FINE and min(worst.values()) > FUTILE:
            return self._by_steps(load, costs)
        reason = f"ready for the worst load of the last minutes, which took {worst[present]:.0%}"
        lately = {n: worst[n] for n, cost in costs.items() if cost <= most}
        return lately, f"{reason} of a target", GAIN

    def _by_steps(
        self, load: PoolLoad, costs: dict[int, float]
    ) -> tuple[dict[int, float], str, float]:
        """The steps of the sizes that are fine by ``costs``, why they count, and the least gain."""
        steps = {n: step for n, step in self._steps.items() if costs[n] <= FINE}
        step_ms = 1e3 * steps[load.num_prefill] * self._forecast.targets_of(load).tpot_s
        return steps, f"shorter steps than {step_ms:.1f} ms", STEP_GAIN

    def _note(self, times: list[Times], costs: dict[int, float], now: float) -> None:
        passed_s = now - self._noted_at
        self._noted_at = now
        self._worst = _larger(costs, self._worst, exp(-passed_s / MEMORY_S))
        self._steps_weight = 1 + self._steps_weight * exp(-passed_s / STEPS_S)
        self._together += (times[0].counts_as - self._together) / self._steps_weight
        steps = {size: each.token for size, each in enumerate(times)}
        self._steps = _averaged(steps, self._steps, self._steps_weight)

    def _prediction(self, load: PoolLoad, times: Times) -> str:
        targets = self._forecast.targets_of(load)
        return (
            f"{load.tokens_waiting} tokens wait, predicted TTFT "
            f"{times.ttft * targets.ttft_s:.2f} s of {targets.ttft_s:g}, TPOT "
            f"{1e3 * times.token * targets.tpot_s:.1f} ms of {1e3 * targets.tpot_s:g}"
        )


def _larger(new: dict[int, float], old: dict[int, float], fade: float) -> dict[int, float]:
    """The new values, or what is left of the old ones where that is more."""
    return {size: max(value, fade * old.get(size, 0.0)) for size, value in new.items()}


def _averaged(new: dict[int, float], old: dict[int, float], weight: float) -> dict[int, float]:
    """The means of ``weight`` values so far, with the new ones."""
    means = {size: old.get(size, value) for size, value in new.items()}
    return {size: mean + (new[size] - mean) / weight for size, mean in means.items()}
