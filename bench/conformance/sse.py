"""A streamed response's bytes, read strictly: what no lenient client would notice shows here."""

import json
from dataclasses import dataclass
from typing import Any, Self

_DONE = "[DONE]"


@dataclass(frozen=True)
class Events:
    """``chunks`` are the JSON objects before ``[DONE]``. ``problems`` is everything about the form
    that some client stumbles over: comment lines, other fields, text outside of events, what is
    not JSON, a missing or doubled ``[DONE]``, anything after it."""

    chunks: tuple[Any, ...]
    done: bool
    problems: tuple[str, ...]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        problems: list[str] = []
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as error:
            problems.append(f"not UTF-8: {error}")
            text = body.decode("utf-8", "replace")
        *blocks, rest = text.replace("\r\n", "\n").split("\n\n")
        if rest:
            problems.append(f"the last event is not ended by an empty line: {rest[:80]!r}")
        chunks: list[Any] = []
        done = False
        for block in blocks:
            if done:
                problems.append(f"after [DONE] came {block[:80]!r}")
            data = [_data(line, problems) for line in block.split("\n")]
            content = "\n".join(line for line in data if line is not None)
            if content == _DONE:
                done = True
            elif any(line is not None for line in data):
                chunks.append(_object(content, problems))
        if not done:
            problems.append("the stream ended without [DONE]")
        return cls(tuple(c for c in chunks if c is not None), done, tuple(problems))


def _data(line: str, problems: list[str]) -> str | None:
    if line.startswith(":"):
        problems.append(f"a comment line: {line[:80]!r}")
    elif line.startswith("data: "):
        return line[6:]
    elif line.startswith("data:"):
        problems.append(f"no space after 'data:': {line[:80]!r}")
        return line[5:]
    else:
        problems.append(f"a line that is no data: {line[:80]!r}")
    return None


def _object(content: str, problems: list[str]) -> Any:
    try:
        value = json.loads(content)
    except ValueError:
        problems.append(f"an event that is not JSON: {content[:80]!r}")
        return None
    if not isinstance(value, dict):
        problems.append(f"an event that is no object: {content[:80]!r}")
        return None
    return value
