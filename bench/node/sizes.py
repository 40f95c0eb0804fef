"""How much a node is asked: of a full-size model on GPUs, or of the bundled one on two cores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.predict.pools import Level


@dataclass(frozen=True)
class Soak:
    """Handoffs under load, of prompts of up to ``max_prompt`` tokens, while ``kills`` workers are
    killed, prefill and decode by turns (tests/soak/handoffs.py)."""

    handoffs: int
    kills: int
    concurrency: int
    max_prompt: int
    max_output: int


@dataclass(frozen=True)
class Sizes:
    """``levels`` are requests at once, filled at most ``rounds`` times and with at most
    ``requests``; at ``crowds`` all begin at once. ``mode_levels`` are those that are measured with
    spread steps and with drafts. Lengths are tokens."""

    levels: tuple[int, ...]
    mode_levels: tuple[int, ...]
    crowds: tuple[int, ...]
    rounds: int
    requests: int
    input_len: int
    output_len: int
    handoff_alone: Level
    handoff_long: Level
    streams: tuple[int, int, int]
    """Steady streams, tokens of their prompts, tokens they go on for."""
    arrivals: tuple[int, int, float]
    """Long prompts beside them, tokens of each, seconds from one to the next."""
    soak: Soak


FULL = Sizes(
    levels=(1, 2, 4, 8, 16, 32, 64), mode_levels=(1, 16, 32, 64), crowds=(256, 512),
    rounds=2, requests=64, input_len=1024, output_len=1024,
    handoff_alone=Level(1, 32, 1024, 128), handoff_long=Level(8, 32, 8192, 32),
    streams=(32, 1024, 1024), arrivals=(40, 8192, 0.25),
    soak=Soak(handoffs=300, kills=4, concurrency=16, max_prompt=32_768, max_output=64),
)  # fmt: skip
TINY = replace(
    FULL, levels=(1, 2, 4), mode_levels=(1, 4), crowds=(8,), requests=8, input_len=64,
    output_len=32, handoff_alone=Level(1, 8, 64, 16), handoff_long=Level(4, 8, 512, 16),
    streams=(4, 64, 200), arrivals=(8, 512, 0.25),
    soak=Soak(handoffs=40, kills=4, concurrency=6, max_prompt=512, max_output=16),
)  # fmt: skip
SIZES: Mapping[str, Sizes] = {"full": FULL, "tiny": TINY}
