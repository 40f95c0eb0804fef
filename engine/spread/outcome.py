"""What became of a launched spread step: known on the device at once, and on the host later."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.step import Draw


@dataclass(frozen=True)
class SpreadOutcome:
    """``aborted`` int32 [1] is on the device: unless it is 0, the sequences are as before the step.
    ``header`` is the exchange's, on its way to the host until ``copied``."""

    aborted: torch.Tensor
    header: torch.Tensor
    copied: torch.cuda.Event | None

    @classmethod
    def of(cls, header: torch.Tensor) -> "SpreadOutcome":
        """Enqueue the reading of ``header``. Others may set the abort word at any time: the device
        and the host see this one reading."""
        found = header.clone()
        if not found.is_cuda:
            return cls(found[:1], found, None)
        on_host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        on_host.copy_(found, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return cls(found[:1], on_host, copied)

    def wait(self) -> None:
        """Return when the host knows it."""
        if self.copied is not None:
            self.copied.synchronize()

    def read(self) -> tuple[bool, tuple[int, ...]]:
        """(whether the step was aborted, the places of members that were waited for in vain, as far
        as is known); waits for the step."""
        self.wait()
        abort, *late = self.header.tolist()
        return abort != 0, tuple(place for place, word in enumerate(late) if word)


@dataclass(frozen=True)
class SettledDraw:
    """An ``engine.constraints.TokenSource``: what sequences have got of a step's ``draw``, which is
    nothing if the step was aborted."""

    draw: Draw
    outcome: SpreadOutcome

    def wait(self) -> None:
        self.draw.wait()
        self.outcome.wait()

    def output(self, row: int) -> Sequence[int]:
        aborted, _ = self.outcome.read()
        return () if aborted else self.draw.output(row)
