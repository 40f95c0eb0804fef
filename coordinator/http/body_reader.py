"""A process that reads heavy bodies: ``ReaderProcess`` starts and asks it, ``main`` is its program.

Checking and tokenizing a long body holds the interpreter for up to half a second, in whichever
thread. So ``python -m coordinator.http.body_reader MODEL`` does it, one body at a time: a Job and
the body come on stdin, a Reply and what it announces go to stdout; an empty Reply says that it has
loaded. It ends when its stdin does.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, cast

import msgspec
from msgspec import Struct

from coordinator.core.contract import Core
from coordinator.http.app_context import AppContext
from coordinator.http.errors import ApiError, internal_error
from coordinator.http.http_settings import HttpSettings
from coordinator.http.preparation import Prepared, prepared
from coordinator.http.request_parser import Kind, parse
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from transport.wire.token_ids import to_wire

_HEAD_BYTES = 4


class Job(Struct, frozen=True):
    """``num_bytes`` of body follow. ``settings`` are the HttpSettings, but what they say of keys.
    ``earlier`` is the JSON of what earlier responses hold of the conversation, ``isolated_key`` is
    that of AppContext."""

    kind: Kind
    max_seq_len: int | None
    settings: dict[str, Any]
    num_bytes: int
    earlier: bytes = b""
    isolated_key: str = ""


class Refusal(Struct, frozen=True):
    """An ApiError; ``bug`` is the traceback where it stands for an unhandled exception."""

    status: int
    message: str
    param: str | None
    code: str | None
    headers: dict[str, str]
    bug: str = ""


class Reply(Struct, frozen=True):
    """``num_bytes`` follow: the JSON of an answer, or with ``request`` (JSON, without its texts, of
    ``kind``) the ids of its prompts, which have ``lens`` tokens. ``echoes`` and ``origin`` are
    Prepared's."""

    refusal: Refusal | None = None
    kind: Kind = "chat"
    request: bytes | None = None
    lens: tuple[int, ...] = ()
    echoes: list[str] | None = None
    num_bytes: int = 0
    origin: bytes = b""


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


class ReaderDied(Exception):
    """The process could not start, ended before it had replied, or took longer than it may."""


class ReaderProcess:
    """Started by ``start`` or the first ``ask``, and again by the next one after it died. One call
    at a time, but ``kill``, which is for good; a process that takes ``deadline_s`` to load or to
    reply is killed."""

    def __init__(self, model: Path, deadline_s: float) -> None:
        self._model = model
        self._deadline_s = deadline_s
        self._process: Popen[bytes] | None = None
        self._is_killed = False

    def ask(self, job: Job, body: Sequence[bytes]) -> tuple[Reply, bytes]:
        """The reply and what it announces. Blocks; raises ReaderDied."""
        self.start()
        with self._within_deadline() as (stdin, stdout):
            write_head(stdin, job)
            for piece in body:
                stdin.write(piece)
            stdin.flush()
            reply = msgspec.msgpack.decode(read_head(stdout), type=Reply)
            return reply, read_exactly(stdout, reply.num_bytes)

    def start(self) -> None:
        """Blocks until it has loaded, which takes a second; no-op where it runs. Raises
        ReaderDied."""
        if self.is_running:
            return
        command = [sys.executable, "-m", "coordinator.http.body_reader", str(self._model)]
        try:
            self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        except OSError as error:
            raise ReaderDied(f"its reader could not be started: {error}") from error
        if self._is_killed:  # meanwhile: ``kill`` has not seen it
            self.kill()
        with self._within_deadline() as (_, stdout):
            read_head(stdout)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it for good, whatever it is doing, also while it is being started."""
        self._is_killed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    @contextmanager
    def _within_deadline(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Its stdin and stdout. It is killed after ``deadline_s``, and by any exception: the next
        ask would read what is left of this reply."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(self._deadline_s, process.kill)
        deadline.daemon = True
        try:
            deadline.start()
            yield process.stdin, process.stdout
        except Exception as error:
            process.kill()
            ended = process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()
            if not isinstance(error, OSError | EOFError):
                raise
            raise ReaderDied(
                f"its reader ended with {ended}; it had {self._deadline_s:g} s"
            ) from error
        finally:
            deadline.cancel()


class CoreLimit(Struct, frozen=True):
    """The limit of the core, as a job says it."""

    max_seq_len: int | None


def main(model: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the coordinator, not before
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
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
        _send(outgoing, *_reply(context, job, body))


def _send(outgoing: IO[bytes], reply: Reply, data: bytes) -> None:
    try:
        write_head(outgoing, reply)
        outgoing.write(data)
        outgoing.flush()
    except BrokenPipeError:
        os._exit(0)  # the coordinator is gone, and nothing reads what is left in the buffer


def _reply(context: AppContext, job: Job, body: bytes) -> tuple[Reply, bytes]:
    try:
        found = prepared(context, job.kind, parse(job.kind, body), job.earlier)
    except ApiError as error:
        return _refused(error), b""
    except Exception:
        return _refused(internal_error(), bug=traceback.format_exc()), b""
    if not isinstance(found, Prepared):
        return Reply(num_bytes=len(found)), found
    data = b"".join(map(to_wire, found.prompts))
    request = msgspec.json.encode(found.request)
    lens = tuple(map(len, found.prompts))
    return (
        Reply(None, found.kind, request, lens, found.echoes, len(data), found.origin),
        data,
    )


def _refused(error: ApiError, bug: str = "") -> Reply:
    return Reply(Refusal(error.status, str(error), error.param, error.code, error.headers, bug))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
