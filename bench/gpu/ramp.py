"""How many requests keep the GPUs full: doubled until tokens/s stops growing. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One concurrency that was tried, and the output tokens per second it gave."""

    concurrency: int
    tokens_per_s: float


@dataclass
class Ramp:
    """Tell it each rate with ``took``; ``concurrency`` is what to try next, None at the end.

    A doubling that gains under ``least_gain`` is not worth its latency: the one before it holds.
    """

    start: int = 1
    most: int = 4096
    least_gain: float = 0.05
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start: {self.start} is not between 1 and {self.most}")
        if self.least_gain <= 0:
            raise ValueError(f"least_gain: {self.least_gain} is not positive")
        self.concurrency: int | None = self.start

    @property
    def best(self) -> Step:
        """The step to hold; there is one once a rate has been told."""
        best = self.steps[0]
        for step in self.steps[1:]:
            if step.tokens_per_s > best.tokens_per_s * (1 + self.least_gain):
                best = step
        return best

    def took(self, tokens_per_s: float) -> None:
        assert self.concurrency is not None, "the ramp is over"
        self.steps.append(Step(self.concurrency, tokens_per_s))
        grows = self.best is self.steps[-1]
        doubled = min(2 * self.concurrency, self.most)
        self.concurrency = doubled if grows and doubled > self.concurrency else None
