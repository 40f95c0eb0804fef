"""What the two shapes of response have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.http.choice import Delta

Json = dict[str, Any]


@dataclass(slots=True)
class Usage:
    """Tokens of a request: each prompt once, the output of all its choices so far."""

    prompt_tokens: int
    completion_tokens: int = 0

    def json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class Writer(Protocol):
    """Turns deltas into the JSON of one endpoint."""

    def head(self) -> Json:
        """The fields that every chunk repeats."""
        ...

    def chunk(self, index: int, delta: Delta) -> Json: ...

    def body(self, choices: Sequence[Delta], usage: Usage) -> Json: ...
