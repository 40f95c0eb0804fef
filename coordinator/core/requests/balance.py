"""Which workers give sequences to others of their role, because their steps take longer. Pure.

Placement keeps workers even, but a worker that joins, comes back or changes its role has nothing,
and answers end when they end. A step takes as long as a power of its *weight*: the sequences, and
their context by ``CONTEXT_LEN``. A sequence moves if the steps that it still has are shorter there
by more than the move costs.

Hysteresis: a worker has been uneven for ``HOLD_S``, or another one has nothing to decode. And a
move back would have to gain as much.
"""

from collections.abc import Mapping

from coordinator.core.request import Request
from coordinator.core.workers.worker import Worker

CONTEXT_LEN = 16_384
"""Tokens of context that weigh as much as one sequence: reading their keys and values takes an H200
93 µs, and one sequence more makes a step of 64 to 128 sequences 78 µs longer."""
STEP_POWER = 0.5
"""With twice the sequences a step takes 1.4 times as long; on an H200 1.3 to 1.5 times, from 4 to
128 sequences."""
HOLD_S = 1.0
MIN_MORE = 4
"""Sequences that a worker has more than another one before any moves."""
GAIN = 0.15
"""Share of a step that a move saves at least."""
COST_STEPS = 8
"""Steps that a moved sequence loses, and that its neighbours wait for the copies, at most."""


class Balance:
    """Notes since when workers of one role are uneven: for ``hold_s`` before sequences move.
    ``weights`` are those of the workers of the role that take work, by instance."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._uneven_since: dict[str, float] = {}

    def uneven(self, weights: Mapping[str, float], now: float) -> list[str]:
        """The workers that have much more than the least loaded one. While every worker has
        something, they must have had much more for ``hold_s``."""
        least = min(weights.values(), default=0.0)
        fuller = [
            instance
            for instance, own in weights.items()
            if own - least >= MIN_MORE and _gain(own, least + 1) >= GAIN
        ]
        hold_s, before = self._hold_s if least else 0.0, self._uneven_since
        self._uneven_since = {instance: before.get(instance, now) for instance in fuller}
        return [each for each in fuller if now - self._uneven_since[each] >= hold_s]


def request_gains(request: Request, source_weight: float, there: float) -> bool:
    """As ``gains``, for a request."""
    own = 1 + request.num_tokens / CONTEXT_LEN
    num_left = request.spec.stop.max_tokens - len(request.output_ids)
    return gains(own, num_left, source_weight, there)


def gains(own: float, num_left: int, source_weight: float, there: float) -> bool:
    """True if a sequence of the weight ``own``, with ``num_left`` tokens to come, of a worker with
    ``source_weight`` is better off at one with the weight ``there``."""
    if source_weight - own < there:
        return False
    gain = _gain(source_weight, there + own)
    return gain >= GAIN and gain * num_left > COST_STEPS


def weight(worker: Worker) -> float:
    """What a worker's step has to compute and to read, in sequences."""
    load = worker.load
    return load.num_sequences + load.num_pages_needed * worker.layout.page_size / CONTEXT_LEN


def _gain(source_weight: float, target_weight: float) -> float:
    """The share of a step of the source that a step of the target saves."""
    return 1 - float((target_weight / source_weight) ** STEP_POWER)
