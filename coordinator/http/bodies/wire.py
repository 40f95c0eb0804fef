"""The pipes between the coordinator and a process that parses bodies: a struct for each direction.

A Job is followed by the body, a Reply by the bytes that it announces.
"""

from typing import IO, Any

import msgspec
from msgspec import Struct

from coordinator.http.preparation import Kind

_HEAD_BYTES = 4


class Job(Struct, frozen=True):
    """One body to parse.

    ``num_bytes``: length of the body that follows. ``settings``: the HttpSettings without API keys.
    ``earlier``: JSON of what earlier responses hold of the conversation. ``isolated_key``: that of
    AppContext.
    """

    kind: Kind
    max_seq_len: int | None
    settings: dict[str, Any]
    num_bytes: int
    earlier: bytes = b""
    isolated_key: str = ""


class Refusal(Struct, frozen=True):
    """An ApiError; ``bug`` is the traceback if it stands for an unhandled exception."""

    status: int
    message: str
    param: str | None
    code: str | None
    headers: dict[str, str]
    bug: str = ""


class Reply(Struct, frozen=True):
    """The result of a Job: a refusal, a whole answer, or a request with the ids of its prompts.

    ``num_bytes`` follow: without ``request`` the JSON of the answer, else the ids. ``request``:
    JSON of the request of ``kind``, without its texts. ``lens``: number of tokens of each prompt.
    ``echoes`` and ``origin``: those of Prepared. An empty Reply says that the process has loaded.
    """

    refusal: Refusal | None = None
    kind: Kind = "chat"
    request: bytes | None = None
    lens: tuple[int, ...] = ()
    echoes: list[str] | None = None
    num_bytes: int = 0
    origin: bytes = b""


def write_head(stream: IO[bytes], head: Job | Reply) -> None:
    """Write a Job or a Reply; what it announces follows."""
    data = msgspec.msgpack.encode(head)
    stream.write(len(data).to_bytes(_HEAD_BYTES, "little") + data)


def read_head(stream: IO[bytes]) -> bytes:
    """Read the encoded Job or Reply that comes next; raises EOFError."""
    return read_exactly(stream, int.from_bytes(read_exactly(stream, _HEAD_BYTES), "little"))


def read_exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    """Read ``num_bytes``; raises EOFError if the stream ends before."""
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError
    return data
