"""``python -m coordinator.http.body_reader MODEL``: reads heavy bodies for a coordinator.

Checking and tokenizing a long body holds the interpreter for up to half a second, in whichever
thread. So it is done in a process of its own, one body at a time: a Job and the body come on stdin,
a Reply and what it announces go to stdout. It ends with its stdin."""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from coordinator.core.contract import Core
from coordinator.http.app_context import AppContext
from coordinator.http.errors import ApiError, internal_error
from coordinator.http.http_settings import HttpSettings
from coordinator.http.preparation import Prepared, prepared
from coordinator.http.reader_process import (
    Job,
    Refusal,
    Reply,
    read_exactly,
    read_head,
    write_head,
)
from coordinator.http.request_parser import Kind, parse
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from transport.wire.token_ids import to_wire


class CoreLimit(Struct, frozen=True):
    """The limit of the core, as a job says it."""

    max_seq_len: int | None


def main(model: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the coordinator, not before
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    tokenizer, metrics = Tokenizer.load(model), Metrics("")
    while True:
        try:
            job = msgspec.msgpack.decode(read_head(incoming), type=Job)
            body = read_exactly(incoming, job.num_bytes)
        except EOFError:
            return
        core = cast(Core, CoreLimit(job.max_seq_len))
        context = AppContext(core, tokenizer, HttpSettings(**job.settings), metrics)
        reply, data = _reply(context, job.kind, body)
        try:
            write_head(outgoing, reply)
            outgoing.write(data)
            outgoing.flush()
        except BrokenPipeError:
            os._exit(0)  # the coordinator is gone, and nothing reads what is left in the buffer


def _reply(context: AppContext, kind: Kind, body: bytes) -> tuple[Reply, bytes]:
    try:
        found = prepared(context, kind, parse(kind, body))
    except ApiError as error:
        return _refused(error), b""
    except Exception:
        return _refused(internal_error(), bug=traceback.format_exc()), b""
    if not isinstance(found, Prepared):
        return Reply(num_bytes=len(found)), found
    data = b"".join(map(to_wire, found.prompts))
    request = msgspec.json.encode(found.request)
    lens = tuple(map(len, found.prompts))
    return Reply(None, found.kind, request, lens, found.echoes, len(data)), data


def _refused(error: ApiError, bug: str = "") -> Reply:
    return Reply(Refusal(error.status, str(error), error.param, error.code, error.headers, bug))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
