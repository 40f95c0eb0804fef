"""What the coordinator and the processes that read heavy bodies say to each other."""

from typing import IO, Any, Literal

import msgspec
from msgspec import Struct

Kind = Literal["chat", "completion", "tokenize", "detokenize"]

_HEAD_BYTES = 4


class Job(Struct, frozen=True):
    """``num_bytes`` of body follow. ``settings`` are the HttpSettings without keys."""

    kind: Kind
    max_seq_len: int | None
    settings: dict[str, Any]
    num_bytes: int


class Refusal(Struct, frozen=True):
    """An ApiError; ``bug`` is the traceback of what was no refusal."""

    status: int
    message: str
    param: str | None
    code: str | None
    headers: dict[str, str]
    bug: str = ""


class Reply(Struct, frozen=True):
    """``num_bytes`` follow: the JSON of an answer, or with ``request`` (JSON, without its texts)
    the ids of its prompts, which have ``lens`` tokens."""

    refusal: Refusal | None = None
    request: bytes | None = None
    lens: tuple[int, ...] = ()
    echoes: list[str] | None = None
    num_bytes: int = 0


def write_head(stream: IO[bytes], head: Job | Reply) -> None:
    data = msgspec.msgpack.encode(head)
    stream.write(len(data).to_bytes(_HEAD_BYTES, "little") + data)


def read_head(stream: IO[bytes]) -> bytes:
    """The bytes of a Job or Reply; raises EOFError."""
    return read_exactly(stream, int.from_bytes(read_exactly(stream, _HEAD_BYTES), "little"))


def read_exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    """Raises EOFError where the stream ends before."""
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError
    return data
