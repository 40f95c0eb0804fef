"""The events of /v1/responses and /v1/messages, which have names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.client import events as sse
from bench.harness.conformance.server import Answer, Violation, require


@dataclass(frozen=True)
class Event:
    """``data`` is an object whose ``type`` is the event's name."""

    name: str
    data: dict[str, Any]


def typed_events(answer: Answer) -> Sequence[Event]:
    """All events of a stream that was opened with 200. Raises Violation for a malformed one."""
    kind = answer.ok(optional=True).headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}")
    problems: list[str] = []
    found = [_event(each) for each in sse.events([(0.0, answer.body)], problems) if not _ends(each)]
    require(found, f"a stream without events: {answer}")
    require(not problems, "; ".join(problems[:3]))
    return found


def names(events: Sequence[Event]) -> list[str]:
    """The names in order, each once where it follows itself."""
    found = [event.name for event in events]
    return [name for i, name in enumerate(found) if i == 0 or found[i - 1] != name]


def require_order(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise Violation unless ``found`` has the names ``wanted`` in this order."""
    places = [found.index(name) if name in found else -1 for name in wanted]
    require(-1 not in places and places == sorted(places), f"the events are {found}")


def _ends(event: sse.Event) -> bool:
    return not event.name and event.data == b"[DONE]"


def _event(event: sse.Event) -> Event:
    shown = repr(event.data[:120].decode(errors="replace"))
    try:
        data = json.loads(event.data)
    except ValueError as error:
        raise Violation(f"an event that is not JSON: {shown} ({error!r})") from None
    require(isinstance(data, dict) and "type" in data, f"an event without a type: {shown}")
    require(event.name == data["type"], f"event {event.name!r} and type differ: {shown}")
    return Event(data["type"], data)
