"""The GPUs that decode, in simulated time: the progress of their sequences. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any

from bench.predict.steps import Doing, Steps


class Clock:
    """Simulated time; calls that are due run in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heappush(self._due, (self.now + seconds, next(self._order), do))

    def run(self) -> None:
        while self._due:
            self.now, _, do = heappop(self._due)
            do()


@dataclass
class _Gpu:
    """A GPU. ``given``: tokens that a sequence here since the beginning would have. ``more_len``:
    tokens of all sequences here beyond those of the table of steps."""

    given: float = 0.0
    token_s: float = inf
    ends: list[tuple[float, int, Callable[[], None], int, Hashable]] = field(default_factory=list)
    more_len: int = 0


class Decoders:
    """Gives sequences tokens at the pace of ``steps``, which changes as sequences come and go.
    Between two changes time is continuous: waits for the end of a step are not modelled. Each token
    of ``more_len`` makes a token take ``context_s`` longer. ``lenders``: the GPUs that share steps
    of others only while they have no sequences.

    After prompts a GPU shares no step for as long as one local step takes: members agree on the
    next one while the last local ones are computed. Nor does one that a sequence leaves: that takes
    a local step (decode/scheduler.py)."""

    def __init__(self, clock: Clock, number: int, steps: Steps, context_s: float = 0.0) -> None:
        self._clock, self._steps, self._context_s = clock, steps, context_s
        self._gpus = [_Gpu() for _ in range(number)]
        self.lenders: Collection[int] = ()
        self._paused: set[int] = set()
        self._agreeing: Counter[int] = Counter()
        self._order = count()
        self._moved_at = 0.0
        self._version = 0

    def running(self, gpu: int) -> int:
        return len(self._gpus[gpu].ends)

    def step_s(self, gpu: int) -> float:
        """Seconds from token to token on this GPU, if nothing changes."""
        return self._paces()[gpu]

    def would_spread(self, gpu: int) -> bool:
        """True if the steps of this GPU are spread while no GPU computes prompts."""
        running = [len(each.ends) for each in self._gpus]
        return gpu in self._steps.spreading(Doing(running, (), self.lenders))

    def spreads(self, gpu: int) -> bool:
        """True if the steps of this GPU are spread over several."""
        return gpu in self._steps.spreading(self._doing())

    def join(
        self,
        gpu: int,
        num_tokens: int,
        ended: Callable[[], None],
        more_len: int = 0,
        name: Hashable = None,
    ) -> None:
        """Add a sequence with ``num_tokens`` to come; ``ended`` is called with the last token.
        ``more_len``: how much longer it is, in the mean, than the sequences of the table.
        ``name``: what ``take`` calls it."""
        self._move()
        here = self._gpus[gpu]
        here.more_len += more_len
        heappush(here.ends, (here.given + num_tokens, next(self._order), ended, more_len, name))
        self._plan()

    def take(self, gpu: int) -> list[tuple[Any, int]]:
        """Remove all sequences of this GPU; returns their names with their tokens to come."""
        self._move()
        here = self._gpus[gpu]
        taken = [(name, max(1, ceil(end - here.given))) for end, *_, name in here.ends]
        here.ends.clear()
        here.more_len = 0
        self._plan()
        return taken

    def pause(self, gpu: int) -> None:
        """Stop decoding on this GPU: it computes prompts now."""
        self._move()
        self._paused.add(gpu)
        self._plan()

    def resume(self, gpu: int) -> None:
        """Go on with decoding, at first without a part in shared steps."""
        self._paused.discard(gpu)
        self.leave_step(gpu)

    def leave_step(self, gpu: int) -> None:
        """Let this GPU share no step for as long as one local step takes: after prompts, or because
        a sequence leaves it."""
        self._move()
        self._agreeing[gpu] += 1
        self._plan()
        self._clock.after(max(self._paces()), partial(self._agreed, gpu))

    def _agreed(self, gpu: int) -> None:
        self._move()
        self._agreeing -= Counter([gpu])
        self._plan()

    def _doing(self) -> Doing:
        busy = self._paused | self._agreeing.keys()
        return Doing([len(gpu.ends) for gpu in self._gpus], busy, self.lenders)

    def _paces(self) -> list[float]:
        paces = self._steps.token_s(self._doing())
        if not self._context_s:
            return paces
        context_s = self._context_s
        return [
            max(pace / 2, pace + context_s * gpu.more_len)
            for pace, gpu in zip(paces, self._gpus, strict=True)
        ]

    def _move(self) -> None:
        """Advance all sequences to the present."""
        passed_s = self._clock.now - self._moved_at
        self._moved_at = self._clock.now
        for gpu in self._gpus:
            gpu.given += passed_s / gpu.token_s

    def _plan(self) -> None:
        """Set new paces, and schedule the end of the next sequence."""
        for number, (gpu, token_s) in enumerate(zip(self._gpus, self._paces(), strict=True)):
            gpu.token_s = inf if number in self._paused else token_s
        waits = [
            max(0.0, gpu.ends[0][0] - gpu.given) * gpu.token_s
            for number, gpu in enumerate(self._gpus)
            if gpu.ends and number not in self._paused
        ]
        self._version += 1
        if waits:
            version = self._version
            self._clock.after(min(waits), lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._move()
        over = []
        for gpu in self._gpus:
            while gpu.ends and gpu.ends[0][0] <= gpu.given + 1e-6:
                _, _, ended, more_len, _ = heappop(gpu.ends)
                gpu.more_len -= more_len
                over.append(ended)
        self._plan()
        for ended in over:
            ended()
