"""The events of a chat or completion stream, read strictly: what a lenient client does not notice
is listed as a problem."""

import json
from dataclasses import dataclass
from typing import Any, Self

from bench.harness.client.events import events


@dataclass(frozen=True)
class ChatEvents:
    """``chunks`` are the JSON objects before ``[DONE]``. ``problems`` names everything about the
    form that some client stumbles over: what ``events`` finds, named events, text that is not
    UTF-8 or JSON, a missing or doubled ``[DONE]``, anything after it."""

    chunks: tuple[Any, ...]
    done: bool
    problems: tuple[str, ...]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        problems: list[str] = []
        try:
            body.decode()
        except UnicodeDecodeError as error:
            problems.append(f"not UTF-8: {error}")
        chunks: list[Any] = []
        done = False
        for event in events([(0.0, body)], problems):
            if event.name:
                problems.append(f"a line that is no data: 'event: {event.name[:80]}'")
            if done:
                problems.append(f"after [DONE] came {_shown(event.data)}")
            if event.data == b"[DONE]":
                done = True
            else:
                chunks += _objects(event.data, problems)
        if not done:
            problems.append("the stream ended without [DONE]")
        return cls(tuple(chunks), done, tuple(problems))


def _objects(data: bytes, problems: list[str]) -> list[Any]:
    """The object that ``data`` is, as a list; empty for anything else."""
    try:
        value = json.loads(data.decode(errors="replace"))
    except ValueError:
        problems.append(f"an event that is not JSON: {_shown(data)}")
        return []
    if not isinstance(value, dict):
        problems.append(f"an event that is no object: {_shown(data)}")
        return []
    return [value]


def _shown(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))
