"""What an engine offers that can compute a decode step together with others of its node."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.shapes import Shapes
from engine.step import Step
from transport.wire.errors import PeerGone
from transport.wire.spread import ExchangeExport


class MemberUnreachable(PeerGone):
    """The memory of the member of this ``rank`` cannot be opened, or does not take what is written
    there; the message says why."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True)
class Lent:
    """What became of a step that a lender was in: whether it came in time to take part, whether the
    step was aborted, and the ranks of the members for which it waited in vain."""

    took_part: bool
    aborted: bool = False
    late: tuple[int, ...] = ()


class LentStep(Protocol):
    """A launched step of a lender."""

    @property
    def has_ended(self) -> bool: ...

    def result(self) -> Lent:
        """Wait for its end, which every wait on the device has a limit for. Steps are read in
        their order."""
        ...


class Lending(Protocol):
    """The engine's side of a spread group where it has no rows, and lends its bandwidth. What has
    the same name is as in ``Spreading``."""

    @property
    def export(self) -> ExchangeExport: ...

    @property
    def shapes(self) -> Shapes: ...

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None: ...

    def leave(self) -> None: ...

    def lend(self, plan: SpreadPlan) -> LentStep:
        """Enqueue a step that all decoding members have committed to with this plan. It is the
        ``first`` one if none is under way. What is launched behind an aborted step aborts too."""
        ...


class Spreading(Protocol):
    """The engine's side of a spread group. One thread calls it, the engine's.

    ``export`` is the memory that peers write to while a spread step runs, ``shapes`` are those for
    which there are graphs.
    """

    @property
    def export(self) -> ExchangeExport: ...

    @property
    def shapes(self) -> Shapes: ...

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        """Open the memory of all members, whose exports are in order of rank, the lenders' last;
        ``exports[rank]`` is this engine's own. Called while no step is under way. Raises
        MemberUnreachable."""
        ...

    def leave(self) -> None:
        """Close the peers' memory; no step is under way."""
        ...

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        """Enqueue a step of decode rows that all members launch with this plan. While it is unread
        no other decode step than a spread one is launched. A member that does not come in time
        aborts the step for all; every wait on the device ends by itself. What is launched behind an
        aborted step finds the sequences as they were before it."""
        ...
