"""The lender's part of ``python -m bench.spread_step``, over the model of a member."""

from collections.abc import Sequence

from engine.batch import SpreadPlan
from engine.model.model import Model
from engine.spread.lending import LendingSteps
from engine.spread.memory import ExchangeLayout
from engine.spread.shapes import plain_shapes
from transport.copy.cuda import CudaMemory, close_handle, open_handle
from transport.wire.spread import ExchangeExport


class BenchLender:
    """The last member of a group, where it has no rows. ``handle`` is its memory's."""

    def __init__(
        self, model: Model, layout: ExchangeLayout, buckets: Sequence[int], limit_s: float
    ) -> None:
        memory = CudaMemory()
        self._steps = LendingSteps(
            model, layout, memory, plain_shapes(buckets), limit_s=limit_s,
            open_peer=lambda handle: open_handle(handle, peer="a member"), close_peer=close_handle,
        )  # fmt: skip
        self.handle = memory.handle
        self._generation = 0

    def capture(self, size: int) -> None:
        self._steps.capture(sizes=[size])

    def join(self, generation: int, handles: Sequence[str]) -> None:
        exports = [ExchangeExport("cuda-ipc", handle, 1) for handle in handles]
        self._steps.join(generation, len(handles) - 1, exports, 1)
        self._generation = generation

    def leave(self) -> None:
        self._steps.leave()

    def lend(self, bucket: int, rounds: Sequence[int]) -> int:
        """To how many of these rounds' steps it has come in time."""
        plans = [SpreadPlan(self._generation, number, bucket, first=True) for number in rounds]
        return sum(self._steps.lend(plan).took_part for plan in plans)
