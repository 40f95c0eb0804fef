"""Plans of open loops: when each request is due, and its lengths."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Planned:
    """One request of a plan, due ``at_s`` after the start; lengths in tokens. ``blocks``: ids of
    prompt blocks of ``block_len`` tokens. Requests with the same first ids begin alike."""

    at_s: float
    input_len: int
    output_len: int
    blocks: tuple[int, ...] = ()
    block_len: int = 0


@dataclass(frozen=True)
class Lengths:
    """A uniform distribution between two numbers of tokens, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, name: str, text: str) -> "Lengths":
        """Parse ``"512"`` or ``"128-1024"``. Raises ValueError naming the setting."""
        low, _, high = text.partition("-")
        try:
            found = cls(int(low), int(high or low))
        except ValueError:
            raise ValueError(f"{name}: {text!r} is neither N nor LOW-HIGH") from None
        if not 1 <= found.low <= found.high:
            raise ValueError(f"{name}: {text!r} is not at least 1 and ascending")
        return found

    def draw(self, draw: random.Random) -> int:
        return draw.randint(self.low, self.high)


def poisson(
    rate: float, count: int, inputs: Lengths, outputs: Lengths, draw: random.Random
) -> list[Planned]:
    """``count`` requests whose gaps are exponential with mean ``1 / rate`` seconds."""
    at_s, found = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        found.append(Planned(at_s, inputs.draw(draw), outputs.draw(draw)))
    return found


def mean_rate(plan: Sequence[Planned]) -> float:
    """Requests per second from the first to the last. Raises ValueError if all come at once."""
    span_s = plan[-1].at_s - plan[0].at_s if plan else 0.0
    if span_s <= 0:
        raise ValueError("trace: its requests all come at one time; it has no rate")
    return (len(plan) - 1) / span_s


def paced(plan: Sequence[Planned], speed: float) -> list[Planned]:
    """The same requests at ``speed`` times their pace."""
    return [replace(planned, at_s=planned.at_s / speed) for planned in plan]


def clipped(
    plan: Sequence[Planned], max_input_len: int | None, max_output_len: int | None
) -> tuple[list[Planned], int]:
    """The requests cut to the lengths that a server takes, and how many were cut."""
    found = []
    for planned in plan:
        shorter = replace(
            planned,
            input_len=min(planned.input_len, max_input_len or planned.input_len),
            output_len=min(planned.output_len, max_output_len or planned.output_len),
        )
        found.append(shorter)
    return found, sum(a != b for a, b in zip(plan, found, strict=True))
