"""The program of a process that parses bodies: ``python -m coordinator.http.bodies MODEL``.

It takes Jobs on stdin, one at a time, and answers each with a Reply on stdout. The first Reply is
empty and says that it has loaded. It ends when its stdin does.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import IO, cast

import msgspec
from msgspec import Struct

from coordinator.core.contract import Core
from coordinator.http.app_context import AppContext
from coordinator.http.bodies.wire import Job, Refusal, Reply, read_exactly, read_head, write_head
from coordinator.http.errors import ApiError, internal_error
from coordinator.http.http_settings import HttpSettings
from coordinator.http.preparation import Prepared, parse, prepare
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from transport.wire.token_ids import to_wire


class CoreLimit(Struct, frozen=True):
    """The part of a Core that preparing a request needs."""

    max_seq_len: int | None


def main(model: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process ends with the coordinator, not before
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries goes to stderr: stdout is for replies
    tokenizer, metrics = Tokenizer.load(model), Metrics("")
    _send(outgoing, Reply(), b"")
    while True:
        try:
            job = msgspec.msgpack.decode(read_head(incoming), type=Job)
            body = read_exactly(incoming, job.num_bytes)
        except EOFError:
            return
        core = cast(Core, CoreLimit(job.max_seq_len))
        settings = HttpSettings(**job.settings)
        context = AppContext(core, tokenizer, settings, metrics, isolated_key=job.isolated_key)
        _send(outgoing, *reply_to(context, job, body))


def reply_to(context: AppContext, job: Job, body: bytes) -> tuple[Reply, bytes]:
    """Parse and prepare ``body``; the reply and the bytes that it announces."""
    try:
        found = prepare(context, job.kind, parse(job.kind, body), job.earlier)
    except ApiError as error:
        return _refused(error), b""
    except Exception:
        return _refused(internal_error(), bug=traceback.format_exc()), b""
    if not isinstance(found, Prepared):
        return Reply(num_bytes=len(found)), found
    data = b"".join(map(to_wire, found.prompts))
    request = msgspec.json.encode(found.request)
    lens = tuple(map(len, found.prompts))
    reply = Reply(None, found.kind, request, lens, found.echoes, len(data), found.origin)
    return reply, data


def _send(outgoing: IO[bytes], reply: Reply, data: bytes) -> None:
    try:
        write_head(outgoing, reply)
        outgoing.write(data)
        outgoing.flush()
    except BrokenPipeError:
        os._exit(0)  # the coordinator has ended


def _refused(error: ApiError, bug: str = "") -> Reply:
    return Reply(Refusal(error.status, str(error), error.param, error.code, error.headers, bug))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
