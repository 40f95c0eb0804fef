"""A stream whose events have names, as /v1/responses and /v1/messages send them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.conformance.server import Answer, Violation, require


@dataclass(frozen=True)
class Event:
    """``data`` is an object whose ``type`` is the event's name."""

    name: str
    data: dict[str, Any]


def typed_events(answer: Answer) -> Sequence[Event]:
    """All events of a stream that was opened with 200. Raises Violation for what is no event."""
    kind = answer.ok(optional=True).headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}")
    blocks = answer.body.decode(errors="replace").replace("\r\n", "\n").split("\n\n")
    found = [_event(block) for block in blocks if block.strip() and block.strip() != "data: [DONE]"]
    require(found, f"a stream without events: {answer}")
    return found


def names(events: Sequence[Event]) -> list[str]:
    """In order, each once where it follows itself."""
    found = [event.name for event in events]
    return [name for i, name in enumerate(found) if i == 0 or found[i - 1] != name]


def _event(block: str) -> Event:
    lines = dict(line.partition(": ")[::2] for line in block.strip().split("\n"))
    try:
        data = json.loads(lines["data"])
    except (KeyError, ValueError) as error:
        raise Violation(f"an event that is not JSON: {block[:120]!r} ({error!r})") from None
    require(isinstance(data, dict) and "type" in data, f"an event without a type: {block[:120]!r}")
    require(lines.get("event") == data["type"], f"event and type differ: {block[:120]!r}")
    return Event(data["type"], data)
