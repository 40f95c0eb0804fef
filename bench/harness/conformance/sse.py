"""A streamed response's bytes, read strictly: what a lenient client would not notice shows here."""

import json
from dataclasses import dataclass
from typing import Any, Self


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
            data = [
                line[5:].removeprefix(" ") for line in block.split("\n") if _is_data(line, problems)
            ]
            if data == ["[DONE]"]:
                done = True
            elif data:
                chunks += _objects("\n".join(data), problems)
        if not done:
            problems.append("the stream ended without [DONE]")
        return cls(tuple(chunks), done, tuple(problems))


def _is_data(line: str, problems: list[str]) -> bool:
    if line.startswith(":"):
        problems.append(f"a comment line: {line[:80]!r}")
    elif not line.startswith("data:"):
        problems.append(f"a line that is no data: {line[:80]!r}")
    elif not line.startswith("data: "):
        problems.append(f"no space after 'data:': {line[:80]!r}")
    return line.startswith("data:")


def _objects(content: str, problems: list[str]) -> list[Any]:
    """The object that ``content`` is; none when it is something else."""
    try:
        value = json.loads(content)
    except ValueError:
        problems.append(f"an event that is not JSON: {content[:80]!r}")
        return []
    if not isinstance(value, dict):
        problems.append(f"an event that is no object: {content[:80]!r}")
        return []
    return [value]
