"""What became of a launched spread step: known on the device at once, and on the host later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.download import download
from engine.spread.memory import WAITED
from engine.step import Draw
from transport.wire.spread import MAX_MEMBERS

NEVER = [[0] * MAX_MEMBERS] * 2


class Waited(NamedTuple):
    """How long a member's device waited for each one's rows and results, seconds by place."""

    rows_s: tuple[float, ...]
    results_s: tuple[float, ...]

    @property
    def by_place(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(*self, strict=True)))


class StepRead(NamedTuple):
    """What the host knows of a step: whether it was aborted, the places of members that were waited
    for in vain, and how long each was waited for."""

    aborted: bool
    late: tuple[int, ...]
    waited: Waited


@dataclass(frozen=True)
class SpreadOutcome:
    """``aborted`` int32 [1] is on the device: unless it is 0, the sequences are as before the step.
    ``state`` is the exchange's, on its way to the host until ``copied``."""

    aborted: torch.Tensor
    state: torch.Tensor
    copied: torch.cuda.Event | None

    @classmethod
    def of(cls, state: torch.Tensor) -> "SpreadOutcome":
        """Enqueue the reading of ``state``. Others may set the abort word at any time: the device
        and the host see this one reading."""
        return cls.on_its_way(state.clone())

    @classmethod
    def on_its_way(cls, found: torch.Tensor) -> "SpreadOutcome":
        """Enqueue the copy to the host of what was read; nothing else writes ``found``."""
        if not found.is_cuda:
            return cls(found[:1], found, None)
        (on_host,), copied = download(found)
        return cls(found[:1], on_host, copied)

    @property
    def is_known(self) -> bool:
        """Whether the host knows it."""
        return self.copied is None or self.copied.query()

    def wait(self) -> None:
        """Return when the host knows it."""
        if self.copied is not None:
            self.copied.synchronize()

    def read(self) -> tuple[bool, tuple[int, ...]]:
        """(whether the step was aborted, the places of members that were waited for in vain, as far
        as is known); waits for the step."""
        self.wait()
        abort, *late = self.state[: 1 + MAX_MEMBERS].tolist()
        return abort != 0, tuple(place for place, word in enumerate(late) if word)

    def waited_since(self, before: "SpreadOutcome | None") -> Waited:
        """What has been added to ``waited``, in seconds, since a step before or the join; both are
        known."""
        rows, results = (
            tuple((ns - old) % 2**32 / 1e9 for ns, old in zip(now, then, strict=True))
            for now, then in zip(self._waited(), before._waited() if before else NEVER, strict=True)
        )
        return Waited(rows, results)

    def _waited(self) -> list[list[int]]:
        found: list[list[int]] = self.state[WAITED // 4 :].view(2, MAX_MEMBERS).tolist()
        return found


@dataclass(frozen=True)
class SettledDraw:
    """A ``TokenSource`` (engine/sampling/constraints.py): what sequences have got of a step's
    ``draw``, which is nothing if the step was aborted."""

    draw: Draw
    outcome: SpreadOutcome

    def wait(self) -> None:
        self.draw.wait()
        self.outcome.wait()

    def output(self, row: int) -> Sequence[int]:
        aborted, _ = self.outcome.read()
        return () if aborted else self.draw.output(row)
