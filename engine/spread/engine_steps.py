"""A spread group as an engine on CUDA offers it: ``Spreading`` over its graphs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.batch import ForwardBatch, SpreadPlan, StepResult
from engine.spread.outcome import SpreadOutcome
from engine.spread.shapes import Shapes
from engine.spread.steps import SpreadSteps
from engine.step import Step
from engine.timer import Timer
from transport.wire.spread import ExchangeExport


@dataclass(frozen=True)
class SpreadStep(Step):
    """A step that is read only when it was not aborted. Steps are read in the order of their
    launches."""

    steps: SpreadSteps = field(kw_only=True)
    outcome: SpreadOutcome = field(kw_only=True)

    @property
    def is_done(self) -> bool:
        return self.outcome.is_known and super().is_done

    def wait(self) -> None:
        self.outcome.wait()
        super().wait()

    def result(self) -> StepResult:
        read = self.steps.read(self.outcome)
        if read.aborted:
            return StepResult(((),) * self.num_rows, aborted=True, late=read.late)
        return replace(super().result(), num_stored=0, waited_s=read.waited.by_place)


class EngineSpread:
    """``engine.spread.interface.Spreading``."""

    def __init__(self, steps: SpreadSteps) -> None:
        self.steps = steps

    @property
    def export(self) -> ExchangeExport:
        return self.steps.export

    @property
    def shapes(self) -> Shapes:
        return self.steps.shapes

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        self.steps.join(generation, rank, [export.handle for export in exports], num_lenders)

    def leave(self) -> None:
        self.steps.leave()

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        """As the interface says."""
        timer = Timer(self.steps.exchange.state.device)
        draws, outcome = self.steps.launch(batch, plan)
        timer.stop()
        return SpreadStep(len(batch.rows), draws, timer, steps=self.steps, outcome=outcome)
