"""What a throughput run sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.figures.counting import CLAIM_SHARE
from bench.server_info import ServerInfo

LEVELS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS_A_SUM = 8
"""Sums are greedy and repetitive: more of them would be what a level measures."""


@dataclass(frozen=True)
class ThroughputSettings:
    """Lengths are tokens; of ``requests`` a level, ``spot_checks`` are sums, none where that would
    be more than one of ``REQUESTS_A_SUM``. A level has no more requests than fill it ``rounds``
    times over (0: no such limit). ``exact``: an answer of another length than ``output_len`` has
    failed (None: where ``ignore_eos`` is sent). ``count_tolerance`` is figures/counting.py's;
    ``extra_body`` goes into every request. Raises ValueError naming the setting."""

    seed: int
    levels: tuple[int, ...] = LEVELS
    requests: int = 64
    rounds: int = 0
    input_len: int = 1024
    output_len: int = 1024
    warm_ups: int = 2
    spot_checks: int = 2
    stream: bool = True
    api: Literal["completions", "chat"] = "completions"
    prompt_as: Literal["text", "ids"] = "text"
    temperature: float = 1.0
    ignore_eos: bool = True
    return_token_ids: bool = True
    exact: bool | None = None
    count_tolerance: float = CLAIM_SHARE
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1 or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels: {self.levels} are not different numbers from 1 on")
        for name, least in (
            ("requests", 1), ("rounds", 0), ("input_len", 1), ("output_len", 1), ("warm_ups", 0),
            ("spot_checks", 0), ("temperature", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least {least}")
        if self.requests < max(self.levels):
            raise ValueError(
                f"requests: {self.requests} requests are never {max(self.levels)} at once"
            )
        if not 0 <= self.count_tolerance < 1:
            raise ValueError(f"count_tolerance: {self.count_tolerance} is no share below 1")
        if self.api == "chat" and self.prompt_as == "ids":
            raise ValueError("prompt_as: a chat takes text only")

    def requests_at(self, level: int) -> int:
        return min(self.requests, self.rounds * level) if self.rounds else self.requests

    def spot_checks_at(self, level: int) -> int:
        fit = REQUESTS_A_SUM * self.spot_checks <= self.requests_at(level)
        return self.spot_checks if fit else 0

    def check_fits(self, server: ServerInfo) -> None:
        """Raises ValueError where the server says that its context is shorter."""
        length = self.input_len + self.output_len
        if server.max_model_len is not None and length > server.max_model_len:
            raise ValueError(
                f"input_len, output_len: {length} tokens, and the server takes at most "
                f"{server.max_model_len}"
            )
