"""What the GPU benchmark asks for."""

import random
from dataclasses import dataclass
from typing import Final

from bench.client.asking import Ask, completion

# Words that every tokenizer knows; drawn at random, so that no prefix cache is hit.
_WORDS: Final = (
    *("river", "stone", "window", "garden", "letter", "bridge", "winter", "market"),
    *("candle", "silver", "forest", "engine", "mirror", "harbor", "basket", "thunder"),
    *("pocket", "meadow", "ladder", "copper", "feather", "island", "velvet", "anchor"),
)


@dataclass(frozen=True)
class GpuPlan:
    """``hold_s`` seconds at the concurrency that the ramp finds, between ``start`` and ``most``.

    Each request has about ``input_words`` tokens and gives just ``output_len``. A step of the ramp
    answers ``rounds`` requests a place, the first of which are not counted, within
    ``step_limit_s``; a request may take ``request_limit_s``. ``period_s`` is between two readings.
    """

    hold_s: float = 300.0
    start: int = 4
    most: int = 2_048
    least_gain: float = 0.05
    rounds: int = 3
    step_limit_s: float = 180.0
    request_limit_s: float = 300.0
    input_words: int = 128
    output_len: int = 256
    period_s: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "hold_s", "step_limit_s", "request_limit_s", "input_words", "output_len", "period_s",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.rounds < 2:
            raise ValueError(f"rounds: {self.rounds} is below 2, of which the first is not counted")
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start: {self.start} is not between 1 and most, {self.most}")
        if self.least_gain <= 0:
            raise ValueError(f"least_gain: {self.least_gain} is not positive")

    def ask(self, model: str, draw: random.Random) -> Ask:
        """The next request. Not streamed: it is the GPUs that are to be kept busy."""
        prompt = " ".join(draw.choices(_WORDS, k=self.input_words))
        return completion(
            model, prompt, stream=False, max_tokens=self.output_len, ignore_eos=True,
            temperature=1.0,
        )  # fmt: skip
