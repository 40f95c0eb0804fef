"""A check of the conformance suites, and its possible results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from bench.harness.conformance.server import CHAT, Answer, Server, require

SUM = (
    "Nina has 13 shells. Diana gives Nina 46 shells. She loses 11 of them. "
    "How many shells does Nina have now?"
)
ADD_PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
"""Parameters of the tool that adds two numbers."""
TEXT = "Once upon a time there was a"
OPENAI = "OpenAI's API reference"
VLLM = "vLLM's documentation"
ANTHROPIC = "Anthropic's API reference"
CLIENTS = "real clients"  # found by running them; docs/benchmarking-checks.md names each
SSE = "the server-sent events standard"
OPERATORS = "load balancers and operators"

Ask = Callable[[Server], Awaitable[Answer]]
Run = Callable[[Server], Awaitable[str | None]]
Judge = Callable[[Answer], str | None]


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True)
class Check:
    """A row of a suite. ``act``: the request whose answer ``judge`` judges; without a judge, the
    whole check. ``source``: who asks for this behaviour. Only ``required`` checks decide the exit
    status."""

    name: str
    act: Ask | Run
    judge: Judge | None = None
    source: str = OPENAI
    required: bool = True

    async def run(self, server: Server) -> str | None:
        """Run the check. Returns a remark for the table, or None; raises Violation or
        NotOffered."""
        found: Any = await self.act(server)
        return self.judge(found) if self.judge else found


recommended = partial(Check, required=False)
"""A check that does not decide the exit status."""


def bad_request(answer: Answer) -> None:
    """Judge an answer that must be a 400."""
    require(answer.status == 400, f"expected HTTP 400, got {answer}")


def get(path: str) -> Ask:
    return lambda server: server.get(path)


def chat(**fields: Any) -> Ask:
    return lambda server: server.chat(SUM, **fields)


def messages(**body: Any) -> Ask:
    return lambda server: server.post(CHAT, body)


def complete(prompt: Any, **fields: Any) -> Ask:
    return lambda server: server.complete(prompt, **fields)
