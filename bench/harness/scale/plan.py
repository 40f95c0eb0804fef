"""Settings and requests of the scale test."""

import random
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from bench.harness.client.asking import Ask, completion
from bench.harness.options import Settings, int_list
from bench.harness.workload.plan import Lengths

LEVELS = (10, 100, 400, 1_000, 10_000)

# Low ids are plain text in every vocabulary known, and a random run of them hits no prefix cache.
_IDS = range(40, 240)


def _range(name: str, text: str) -> tuple[int, int]:
    found = Lengths.parse(name, text)
    return found.low, found.high


@dataclass(frozen=True)
class ScalePlan(Settings):
    """``levels``: numbers of requests open at once. A level sends ``turnover`` times as many in
    all, so that its number is really reached. Lengths are in tokens, drawn evenly in a range."""

    kind = "scale"
    levels: Annotated[
        tuple[int, ...],
        Option(help="Requests open at once, level by level; 10,100,400,1000,10000."),
        int_list,
    ] = LEVELS
    input_len: Annotated[tuple[int, int], Option(help="Tokens in, from-to; 128-1024."), _range] = (
        128,
        1_024,
    )
    output_len: Annotated[int, Option(help="Tokens out.")] = 128
    turnover: Annotated[
        float, Option(help="Requests of a level, as a multiple of those open at once.")
    ] = 1.1
    arrivals_per_s: Annotated[float, Option(help="Pace of a level's beginning.")] = 2_000.0
    settle_s: Annotated[float, Option(help="Seconds for Redis to catch up.")] = 30.0
    seed: Annotated[int, Option(help="Of the prompts.")] = 0

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1:
            raise ValueError(f"levels: {self.levels} is empty or has one below 1")
        low, high = self.input_len
        if not 1 <= low <= high:
            raise ValueError(f"input_len: {low} to {high} is not a range of lengths")
        self.require_above_0("output_len", "arrivals_per_s", "settle_s")
        self.require_at_least(1, "turnover")

    def asks(self, level: int, model: str, prefix: str) -> list[Ask]:
        """The requests of a level, the same for the same seed. Their X-Request-Ids begin with
        ``prefix``."""
        draw = random.Random(f"{self.seed}/{level}")
        return [
            completion(
                model,
                draw.choices(_IDS, k=draw.randint(*self.input_len)),
                max_tokens=self.output_len,
                ignore_eos=True,
                temperature=1.0,
                headers={"X-Request-Id": f"{prefix}{number}"},
            )
            for number in range(round(level * self.turnover))
        ]
