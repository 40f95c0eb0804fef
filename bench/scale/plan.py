"""What the scale test asks for."""

import random
from dataclasses import asdict, dataclass
from typing import Any

from bench.client.asking import Ask, completion

LEVELS = (10, 100, 400, 1_000, 10_000)

# Low ids are plain text in every vocabulary known, and a random run of them hits no prefix cache.
_IDS = range(40, 240)


@dataclass(frozen=True)
class ScalePlan:
    """``levels`` are numbers of requests open at once; a level asks ``turnover`` times as many in
    all, so that each is really reached. Lengths are in tokens, drawn evenly from both bounds.

    What a level left behind must be settled within ``settle_s``. ``arrivals_per_s`` is how fast a
    level's first requests come.
    """

    levels: tuple[int, ...] = LEVELS
    input_len: tuple[int, int] = (128, 1_024)
    output_len: int = 128
    turnover: float = 1.1
    arrivals_per_s: float = 2_000.0
    settle_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1:
            raise ValueError(f"levels: {self.levels} is empty or has one below 1")
        low, high = self.input_len
        if not 1 <= low <= high:
            raise ValueError(f"input_len: {low} to {high} is no range of lengths")
        for name in ("output_len", "arrivals_per_s", "settle_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.turnover < 1:
            raise ValueError(f"turnover: {self.turnover} is below 1")

    def num_requests(self, level: int) -> int:
        return round(level * self.turnover)

    def asks(self, level: int, model: str) -> list[Ask]:
        """A level's requests, the same for the same seed."""
        draw = random.Random(f"{self.seed}/{level}")
        return [self._ask(draw, model) for _ in range(self.num_requests(level))]

    def _ask(self, draw: random.Random, model: str) -> Ask:
        prompt = draw.choices(_IDS, k=draw.randint(*self.input_len))
        return completion(
            model, prompt, max_tokens=self.output_len, ignore_eos=True, temperature=1.0
        )

    def settings(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self)


def parse_levels(text: str) -> tuple[int, ...]:
    """Raises ValueError naming the setting.

    >>> parse_levels("10,400")
    (10, 400)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"levels: {text!r} are not numbers with commas between") from None


def parse_range(text: str) -> tuple[int, int]:
    """Raises ValueError naming the setting.

    >>> parse_range("128-1024"), parse_range("64")
    ((128, 1024), (64, 64))
    """
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise ValueError(f"input_len: {text!r} is not FROM-TO") from None
