"""Settings of a throughput run."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Option

from bench.harness.figures.counting import CLAIM_SHARE
from bench.harness.options import int_list
from bench.harness.request_settings import RequestSettings
from bench.harness.server_info import ServerInfo

LEVELS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS_A_SUM = 8
"""Requests per sum. Sums are greedy and repetitive: with more, a level would measure sums."""


@dataclass(frozen=True, kw_only=True)
class ThroughputSettings(RequestSettings):
    """Lengths are in tokens. ``spot_checks`` of a level's ``requests`` are sums, but none if that
    were more than one in ``REQUESTS_A_SUM``. ``count_tolerance``: see figures/counting.py."""

    kind = "throughput"
    levels: Annotated[
        tuple[int, ...],
        Option(help="Requests at once, level by level; 1,2,4,8,16,32,64."),
        int_list,
    ] = LEVELS
    requests: Annotated[int, Option(help="Requests a level.")] = 64
    rounds: Annotated[
        int, Option(help="A level is filled at most this many times; 0: no limit.")
    ] = 0
    input_len: Annotated[int, Option(help="Tokens in, exactly.")] = 1024
    output_len: Annotated[int, Option(help="Tokens out.")] = 1024
    spot_checks: Annotated[
        int, Option(help="Sums among a level's requests; none where over one of eight.")
    ] = 2
    stream: Annotated[bool, Option(help="Stream the answers.")] = True
    api: Annotated[Literal["completions", "chat"], Option(help="The endpoint.")] = "completions"
    count_tolerance: Annotated[
        float, Option(help="Share by which a text may hold less than is claimed.")
    ] = CLAIM_SHARE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or min(self.levels) < 1 or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels: {self.levels} are not different numbers from 1 on")
        self.require_at_least(1, "requests", "input_len", "output_len")
        self.require_at_least(0, "rounds", "spot_checks")
        if self.requests < max(self.levels):
            raise ValueError(
                f"requests: {self.requests} requests are never {max(self.levels)} at once"
            )
        if not 0 <= self.count_tolerance < 1:
            raise ValueError(
                f"count_tolerance: {self.count_tolerance} is not a share from 0 to below 1"
            )
        if self.api == "chat" and self.prompt_as == "ids":
            raise ValueError("prompt_as: a chat takes text only")

    def fields(self) -> dict[str, Any]:
        return {"stream": self.stream, "max_tokens": self.output_len, **super().fields()}

    def requests_at(self, level: int) -> int:
        return min(self.requests, self.rounds * level) if self.rounds else self.requests

    def spot_checks_at(self, level: int) -> int:
        fit = REQUESTS_A_SUM * self.spot_checks <= self.requests_at(level)
        return self.spot_checks if fit else 0

    def check_fits(self, server: ServerInfo) -> None:
        """Raise ValueError if the server reports a shorter context."""
        length = self.input_len + self.output_len
        if server.max_model_len is not None and length > server.max_model_len:
            raise ValueError(
                f"input_len, output_len: {length} tokens, and the server takes at most "
                f"{server.max_model_len}"
            )
