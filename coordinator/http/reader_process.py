"""A process that reads heavy bodies (body_reader.py), as the thread sees it that waits for it."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from coordinator.http.reader_wire import Job, Reply, read_exactly, read_head, write_head


class ReaderDied(Exception):
    """The process ended before it had replied, or took longer than it may."""


class ReaderProcess:
    """Started by the first ``ask``, and again by the next one after it died. One ``ask`` at a time;
    a process that takes ``deadline_s`` for one is killed."""

    def __init__(self, model: Path, deadline_s: float) -> None:
        self._model = model
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job, body: Sequence[bytes]) -> tuple[Reply, bytes]:
        """The reply and what it announces. Blocks; raises ReaderDied."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(self._deadline_s, process.kill)
        deadline.daemon = True
        deadline.start()
        try:
            write_head(process.stdin, job)
            for piece in body:
                process.stdin.write(piece)
            process.stdin.flush()
            reply = msgspec.msgpack.decode(read_head(process.stdout), type=Reply)
            return reply, read_exactly(process.stdout, reply.num_bytes)
        except (OSError, EOFError) as error:
            process.kill()
            ended = process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()
            raise ReaderDied(
                f"its reader ended with {ended}; it had {self._deadline_s:g} s"
            ) from error
        finally:
            deadline.cancel()

    def kill(self) -> None:
        """Whatever it is doing."""
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "coordinator.http.body_reader", str(self._model)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
