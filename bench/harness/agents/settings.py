"""What a load of agents is: how many conversations there are, and how they go on."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from bench.harness.request_settings import RequestSettings
from bench.harness.workload.plan import Lengths

_TURN_LEN = Lengths(192, 192)


@dataclass(frozen=True, kw_only=True)
class AgentSettings(RequestSettings):
    """Lengths are tokens. Without ``agents`` the others mean nothing."""

    agents: Annotated[
        int | None, Option(help="Instead of arrivals, so many conversations at once.")
    ] = None
    turns: Annotated[int, Option(help="Agents: requests of a conversation.")] = 20
    think_s: Annotated[float, Option(help="Agents: seconds from an answer to the next turn.")] = 0.0
    agents_shared_prefix: Annotated[
        int, Option(help="Agents: tokens of the system prompt that they share.")
    ] = 8192
    agents_turn_len: Annotated[
        Lengths, Option(help="Agents: N or LOW-HIGH tokens that a turn adds; 192."), Lengths.parse
    ] = _TURN_LEN
    agents_turn_as: Annotated[
        Literal["tool", "user"],
        Option(help="Agents: a turn after the first adds a tool's result or a user's message."),
    ] = "tool"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "turns", "agents_shared_prefix", "agents")
        self.require_at_least(0, "think_s")
        if self.agents is not None and self.prompt_as == "ids":
            raise ValueError("prompt_as: agents send messages, which are text only")
