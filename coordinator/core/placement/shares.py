"""What each API key may use of the workers while other keys have requests. Pure.

A key's share of the requests at a pool's workers is its weight among the keys that have requests
there or wait. A request of a key that is below its share does not wait until another key's requests
end: the youngest requests of keys above their share make room for it, and are queued again. So no
memory is set aside for keys that ask for nothing.

At a worker, prompts are computed by their rank. That is the arrival of a request, except where
prompts of other keys are ahead: there it comes behind as many of their tokens, by weight, as there
are of its own key.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from coordinator.core.request import Request, State
from coordinator.core.workers.worker import Worker


class Shares:
    """The share of each key at ``workers``. ``waiting`` has the weights of the keys that have
    requests waiting."""

    def __init__(self, workers: Sequence[Worker], waiting: Mapping[str, int]) -> None:
        self._workers = workers
        self._num_placed: Counter[str] = Counter()
        weights = dict(waiting)
        for worker in workers:
            for key, (num, weight) in worker.load.by_key.items():
                self._num_placed[key] += num
                weights[key] = weight
        per_weight = self._num_placed.total() / max(1, sum(weights.values()))
        self._shares = {key: weight * per_weight for key, weight in weights.items()}

    def below(self, key: str) -> bool:
        """True if the key is below its share, also with one request more."""
        others = len(self._shares) > 1
        return others and self._num_placed[key] + 1 <= max(1.0, self._shares.get(key, 0.0))

    def victims(self, fits: Callable[[Worker, Sequence[Request]], bool]) -> list[Request]:
        """The fewest requests of one worker without which another request fits there: the youngest
        of keys that remain at their share without them. [] if there are none.

        ``fits`` says if it does without some of the worker's requests. Quarantined requests are
        left alone.
        """
        found = [taken for worker in self._workers if (taken := self._victims_at(worker, fits))]
        return min(found, key=lambda taken: (len(taken), -taken[0].arrival), default=[])

    def _victims_at(
        self, worker: Worker, fits: Callable[[Worker, Sequence[Request]], bool]
    ) -> list[Request]:
        left, taken = self._num_placed.copy(), list[Request]()
        requests = sorted(worker.load.requests.values(), key=lambda r: r.arrival, reverse=True)
        for request in requests:
            key = request.spec.key
            if left[key] - 1 < self._shares[key] or request.quarantined:
                continue
            left[key] -= 1
            taken.append(request)
            if fits(worker, taken):
                return taken
        return []


def in_turn(handoffs: Sequence[Request], workers: Iterable[Worker]) -> list[Request]:
    """Handoffs in the order in which their keys get places in decode steps, by weight: a key comes
    first that has the fewest. Without other keys in order of arrival, as given."""
    if len({request.spec.key for request in handoffs}) < 2:
        return list(handoffs)
    num: Counter[str] = Counter()
    for worker in workers:
        num.update({key: count for key, (count, _) in worker.load.by_key.items()})
    turns = []
    for request in handoffs:
        num[request.spec.key] += 1
        turns.append((num[request.spec.key] / request.spec.weight, request.arrival, request))
    return [request for *_, request in sorted(turns, key=lambda turn: turn[:2])]


def rank_at(worker: Worker, request: Request) -> int:
    """The rank of a request that is about to be placed at ``worker``."""
    key = request.spec.key
    if worker.load.by_key.keys() <= {key}:
        return request.arrival
    ahead = [r for r in worker.load.requests.values() if r.state is State.PREFILLING]
    starts: defaultdict[str, float] = defaultdict(float)
    begins = []
    for other in sorted(ahead, key=lambda r: (r.rank, r.arrival)):
        begins.append((starts[other.spec.key], other))
        starts[other.spec.key] += worker.load.ahead_of(other) / other.spec.weight
    own = [other.rank for _, other in begins if other.spec.key == key]
    later = [o.rank for start, o in begins if start >= starts[key] and o.spec.key != key]
    if not later:
        return request.arrival
    before = [o.rank for start, o in begins if start < starts[key] and o.spec.key != key]
    return min(request.arrival, max([*own, *before], default=min(later) - 1))
