"""A process that parses bodies, and its deadline."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO

import msgspec

from coordinator.http.bodies.wire import Job, Reply, read_exactly, read_head, write_head


class ParserDied(Exception):
    """The process could not start, ended before it had replied, or took longer than its
    deadline."""


class ParserProcess:
    """Runs ``python -m coordinator.http.bodies``, which parses one body at a time.

    ``start`` or the first ``parse`` starts it, and the next ``parse`` starts it again after it has
    died. It is killed if it takes ``deadline_s`` to load or to reply. Only ``kill``, which is
    final, may be called while another call is running."""

    def __init__(self, model: Path, deadline_s: float) -> None:
        self._model = model
        self._deadline_s = deadline_s
        self._process: Popen[bytes] | None = None
        self._is_killed = False

    def parse(self, job: Job, body: Sequence[bytes]) -> tuple[Reply, bytes]:
        """The reply and the bytes that it announces. Blocks; raises ParserDied."""
        self.start()
        with self._within_deadline() as (stdin, stdout):
            write_head(stdin, job)
            for piece in body:
                stdin.write(piece)
            stdin.flush()
            reply = msgspec.msgpack.decode(read_head(stdout), type=Reply)
            return reply, read_exactly(stdout, reply.num_bytes)

    def start(self) -> None:
        """Block until the process has loaded, which takes a second; no-op if it is running. Raises
        ParserDied."""
        if self.is_running:
            return
        command = [sys.executable, "-m", "coordinator.http.bodies", str(self._model)]
        try:
            self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        except OSError as error:
            raise ParserDied(f"its parser could not be started: {error}") from error
        if self._is_killed:  # meanwhile: ``kill`` did not see this process
            self.kill()
        with self._within_deadline() as (_, stdout):
            read_head(stdout)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the process for good, whatever it is doing, also while it is being started."""
        self._is_killed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    @contextmanager
    def _within_deadline(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Give the process's stdin and stdout, and kill it after ``deadline_s``. Any exception
        kills it too: the next body would get what is left of this reply."""
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
            message = f"its parser ended with {ended}; it had {self._deadline_s:g} s"
            raise ParserDied(message) from error
        finally:
            deadline.cancel()
