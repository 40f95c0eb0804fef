"""Server-sent events: all that bench reads of a stream goes through ``events``."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """``at_s``: when its last byte came. ``data`` are its data lines; ``name`` is "" without an
    event line."""

    at_s: float
    data: bytes
    name: str = ""


def events(
    pieces: Iterable[tuple[float, bytes]], problems: list[str] | None = None
) -> Iterator[Event]:
    """Every complete event of a body that came as ``pieces`` of (arrival, bytes).

    Comments and other fields are skipped, as the standard says. Added to ``problems`` is what some
    client stumbles over: a comment line, a field other than data and event, data without a space
    before it, and an event that no empty line ends.
    """
    found = [] if problems is None else problems
    rest, name = b"", ""
    data: list[bytes] = []
    for at_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in (each.removesuffix(b"\r") for each in lines):
            field, _, value = line.partition(b":")
            if not line:
                if data:
                    yield Event(at_s, b"\n".join(data), name)
                data, name = [], ""
            elif field == b"data" and b":" in line:
                data.append(value.removeprefix(b" "))
                if not value.startswith(b" "):
                    found.append(f"no space after 'data:': {_shown(line)}")
            elif field == b"event" and b":" in line:
                name = value.removeprefix(b" ").decode(errors="replace")
            else:
                what = "a comment line" if line.startswith(b":") else "a line that is no data"
                found.append(f"{what}: {_shown(line)}")
    if rest or data or name:
        left = b"\n".join([*data, rest])
        found.append(f"the last event is not ended by an empty line: {_shown(left)}")


def _shown(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace"))
