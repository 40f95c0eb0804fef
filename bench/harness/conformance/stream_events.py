"""The events of a stream, read strictly: what a lenient client does not notice is a problem."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from bench.harness.client.events import events


@dataclass(frozen=True)
class Event:
    """A JSON object; ``name`` is "" without an event line."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Stream:
    """``events`` are those with a JSON object. ``problems`` names everything about the form that
    some client stumbles over: what ``client.events`` finds, text that is not UTF-8 or JSON, and
    events after ``[DONE]``."""

    events: tuple[Event, ...]
    done: bool
    problems: tuple[str, ...]

    @classmethod
    def read(cls, body: bytes) -> Self:
        problems: list[str] = []
        try:
            body.decode()
        except UnicodeDecodeError as error:
            problems.append(f"not UTF-8: {error}")
        found: list[Event] = []
        done = False
        for event in events([(0.0, body)], problems):
            if done:
                problems.append(f"after [DONE] came {_shown(event.data)}")
            if event.data == b"[DONE]":
                done = True
                continue
            try:
                value = json.loads(event.data.decode(errors="replace"))
            except ValueError:
                problems.append(f"an event that is not JSON: {_shown(event.data)}")
                continue
            if isinstance(value, dict):
                found.append(Event(event.name, value))
            else:
                problems.append(f"an event that is no object: {_shown(event.data)}")
        return cls(tuple(found), done, tuple(problems))

    @property
    def chat_problems(self) -> list[str]:
        """The problems of a stream of chat or completion chunks: these have no names, and
        ``[DONE]`` at their end."""
        named = [f"a line that is no data: 'event: {e.name[:80]}'" for e in self.events if e.name]
        missing = [] if self.done else ["the stream ended without [DONE]"]
        return [*self.problems, *named, *missing]


def names(found: Sequence[Event]) -> list[str]:
    """The names in order, each once where it follows itself."""
    order = [event.name for event in found]
    return [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]


def _shown(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))
