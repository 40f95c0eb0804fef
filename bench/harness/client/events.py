"""Server-sent events: all that bench reads of a stream goes through ``EventReader``."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """``at_s``: when its last byte came. ``data`` are its data lines; ``name`` is "" without an
    event line."""

    at_s: float
    data: bytes
    name: str = ""


class EventReader:
    """Cuts the body of one response into events, piece by piece as they come.

    Comments and other fields are skipped, as the standard says. Added to ``problems`` is what some
    client stumbles over: a comment line, a field other than data and event, data without a space
    before it, and an event that no empty line ends.
    """

    def __init__(self, problems: list[str] | None = None) -> None:
        self._problems = [] if problems is None else problems
        self._rest, self._name = b"", ""
        self._data: list[bytes] = []

    def feed(self, at_s: float, piece: bytes) -> list[Event]:
        """The events that ``piece``, which came at ``at_s``, completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._field(line)
                continue
            if self._data:
                found.append(Event(at_s, b"\n".join(self._data), self._name))
            self._data, self._name = [], ""
        return found

    def end(self) -> None:
        """Note an event that the body's end cuts off."""
        if self._rest or self._data or self._name:
            left = b"\n".join([*self._data, self._rest])
            self._problems.append(f"the last event is not ended by an empty line: {_shown(left)}")

    def _field(self, line: bytes) -> None:
        if line.startswith(b"data: "):
            self._data.append(line[6:])
        elif line.startswith(b"data:"):
            self._data.append(line[5:])
            self._problems.append(f"no space after 'data:': {_shown(line)}")
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ").decode(errors="replace")
        elif line.startswith(b":"):
            self._problems.append(f"a comment line: {_shown(line)}")
        else:
            self._problems.append(f"a line that is no data: {_shown(line)}")


def events(
    pieces: Iterable[tuple[float, bytes]], problems: list[str] | None = None
) -> Iterator[Event]:
    """Every complete event of a body that came as ``pieces`` of (arrival, bytes)."""
    reader = EventReader(problems)
    for at_s, piece in pieces:
        yield from reader.feed(at_s, piece)
    reader.end()


def _shown(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace"))
