"""What a load of agents is: how many conversations there are, and how they go on."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Option

from bench.harness.options import int_list
from bench.harness.request_settings import RequestSettings
from bench.harness.workload.plan import Lengths

ShapeName = Literal["turns", "deep"]
DEEP_AGENTS = (32,)
"""Agents of the shape ``deep``, if no number is given."""


@dataclass(frozen=True)
class Shape:
    """The shape of conversations; lengths are tokens. ``shared_prefix``: of the system prompt's
    part that all agents share; ``own_prefix``: of its part that each agent has for itself.
    ``turn_len``: of each message; ``output_len``: of an answer. ``cached``: system prompts are
    computed before the clock runs; otherwise they are new to the server."""

    turns: int
    shared_prefix: int
    own_prefix: int
    turn_len: Lengths
    output_len: Lengths
    cached: bool


SHAPES: dict[ShapeName, Shape] = {
    "turns": Shape(20, 8192, 0, Lengths(192, 192), Lengths(128, 128), cached=False),
    "deep": Shape(3, 0, 57_600, Lengths(6_400, 6_400), Lengths(400, 400), cached=True),
}
"""``turns``: many short turns, by which the time to first token would grow without a cache.
``deep``: few turns with much new text behind a deep context that is cached, as coding agents have
them; each has its own, since a server may read once what several requests share."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings(RequestSettings):
    """Lengths are tokens. Without ``agents`` the others mean nothing. What is None is as in the
    shape (``shape``)."""

    agents: Annotated[
        tuple[int, ...] | None,
        Option(help="Instead of arrivals, so many conversations at once; N,N: levels."),
        int_list,
    ] = None
    agents_shape: Annotated[
        ShapeName | None,
        Option(
            help="turns (default): 20 turns of 192 tokens in, 128 out, behind a shared prefix of "
            "8192; deep: 3 turns of 6400 in, 400 out, behind 57600 of each agent's own that are "
            "cached, and 32 agents."
        ),
    ] = None
    turns: Annotated[int | None, Option(help="Agents: requests of a conversation.")] = None
    think_s: Annotated[float, Option(help="Agents: seconds from an answer to the next turn.")] = 0.0
    agents_shared_prefix: Annotated[
        int | None, Option(help="Agents: tokens of the system prompt that they share.")
    ] = None
    agents_own_prefix: Annotated[
        int | None, Option(help="Agents: tokens of the system prompt of each one's own.")
    ] = None
    agents_turn_len: Annotated[
        Lengths | None, Option(help="Agents: N or LOW-HIGH tokens that a turn adds."), Lengths.parse
    ] = None
    agents_turn_as: Annotated[
        Literal["tool", "user"],
        Option(help="Agents: a turn after the first adds a tool's result or a user's message."),
    ] = "tool"
    output_len: Annotated[
        Lengths | None,
        Option(help="Poisson, agents: N or LOW-HIGH tokens out; Poisson: 128."),
        Lengths.parse,
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents_shape == "deep" and self.agents is None:
            object.__setattr__(self, "agents", DEEP_AGENTS)
        if self.agents is not None and (not self.agents or min(self.agents) < 1):
            raise ValueError(f"agents: {self.agents} are not numbers of at least 1")
        self.require_at_least(1, "turns")
        self.require_at_least(0, "think_s", "agents_shared_prefix", "agents_own_prefix")
        if self.shape.shared_prefix + self.shape.own_prefix < 1:
            raise ValueError("agents_shared_prefix, agents_own_prefix: both are 0")
        if self.agents is not None and self.prompt_as == "ids":
            raise ValueError("prompt_as: agents send messages, which are text only")

    @property
    def shape(self) -> Shape:
        """The shape of the conversations: the chosen one, with what is given replaced."""
        usual = SHAPES[self.agents_shape or "turns"]
        shared, own = self.agents_shared_prefix, self.agents_own_prefix
        return Shape(
            self.turns or usual.turns,
            usual.shared_prefix if shared is None else shared,
            usual.own_prefix if own is None else own,
            self.agents_turn_len or usual.turn_len,
            self.output_len or usual.output_len,
            usual.cached,
        )

    def shape_json(self) -> dict[str, Any]:
        """The shape for a result file, under the names of the settings."""
        shape = self.shape
        return {
            "agents_shape": self.agents_shape or "turns",
            "turns": shape.turns,
            "agents_shared_prefix": shape.shared_prefix,
            "agents_own_prefix": shape.own_prefix,
            "agents_turn_len": [shape.turn_len.low, shape.turn_len.high],
        }
