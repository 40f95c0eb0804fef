"""Checks the forms of outputs in other processes (grammar_server.py), and caches the verdicts.

Equal forms are checked once for all requests that wait, and an agent's tools once for all its
turns. Owners (an API key or a client's address) take turns.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from coordinator.text.forms import Form, Verdict
from coordinator.text.grammar_server import BEGUN, CPU_S

TOO_MUCH = (
    f"it takes more than {CPU_S:g} s of a processor, or too much memory, to compile; make it "
    "smaller or nest it less"
)
_MAX_KEPT_BYTES = 32 * 1024 * 1024
_MAX_WAITING = 1_024
_MAX_WAITING_OF_ONE = 256
_DEADLINE_S = 10.0
_LOAD_S = 60.0  # for the vocabulary
_encode = msgspec.json.Encoder().encode
log = logging.getLogger(__name__)

_Asked = tuple[bytes, Future[Verdict]]


class ChecksBusy(Exception):
    """Too many forms wait, or this one was not checked in time."""


class _Hangs(Exception):
    """The grammar server has not forked a child in time."""


class GrammarChecks:
    """Checks forms for the tokenizer in ``folder``, whose ids are below ``num_ids``. Safe to use
    from several event loops. ``start`` or the first check starts the grammar server, which takes
    seconds to load the vocabulary."""

    def __init__(self, folder: Path, num_ids: int, eos_ids: Sequence[int]) -> None:
        self._arguments = [str(folder), str(num_ids), *map(str, eos_ids)]
        num_at_once = min(8, max(2, (os.cpu_count() or 1) // 2))
        self._threads = ThreadPoolExecutor(num_at_once, thread_name_prefix="forms")
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._server_lock = threading.Lock()
        self._closed = False
        self._known: OrderedDict[bytes, Future[Verdict]] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: OrderedDict[str, deque[_Asked]] = OrderedDict()

    def start(self) -> None:
        """Start the grammar server, without waiting until it has loaded."""
        self._threads.submit(self._running)

    async def check(self, form: Form, owner: str = "") -> Verdict:
        """The verdict on a form. Raises ChecksBusy."""
        asked = self._asked(_encode(form), owner)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                # One that is cancelled must not cancel it for the others.
                return await asyncio.shield(asyncio.wrap_future(asked))
        except TimeoutError:
            message = f"the grammar was not checked within {_DEADLINE_S:g} s"
            raise ChecksBusy(message) from None

    def close(self) -> None:
        """End the grammar server; forms that wait are not checked any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [one for each in self._waiting.values() for one in each]
            self._waiting.clear()
        for _, asked in waiting:
            asked.cancel()
        with self._server_lock:
            self._closed = True
            if self._server is not None:
                self._server.kill()

    def _asked(self, form: bytes, owner: str) -> Future[Verdict]:
        with self._lock:
            if (known := self._known.get(form)) is not None:
                self._known.move_to_end(form)
                return known
            num_waiting = sum(map(len, self._waiting.values()))
            num_mine = len(self._waiting.get(owner, ()))
            if num_waiting >= _MAX_WAITING or num_mine >= _MAX_WAITING_OF_ONE:
                message = f"{num_waiting} grammars wait to be checked already, {num_mine} of yours"
                raise ChecksBusy(message)
            asked = self._known[form] = Future()
            self._waiting.setdefault(owner, deque()).append((form, asked))
        asked.add_done_callback(lambda _: self._keep(form, asked))
        self._threads.submit(self._next)  # as often as there are forms, whichever it takes
        return asked

    def _next(self) -> None:
        with self._lock:
            owner, waiting = next(iter(self._waiting.items()))
            form, asked = waiting.popleft()
            self._waiting.move_to_end(owner)
            if not waiting:
                del self._waiting[owner]
        try:
            asked.set_result(self._ask(form))
        except Exception as error:
            asked.set_exception(error)

    def _keep(self, form: bytes, asked: Future[Verdict]) -> None:
        with self._lock:
            if asked.cancelled() or asked.exception() is not None or asked.result().bug:
                self._known.pop(form, None)
                return
            self._kept_bytes += _size(form, asked)
            while self._kept_bytes > _MAX_KEPT_BYTES:
                oldest = next(form for form, one in self._known.items() if one.done())
                self._kept_bytes -= _size(oldest, self._known.pop(oldest))

    def _ask(self, form: bytes) -> Verdict:
        """Ask the grammar server for a verdict; blocks. Raises ChecksBusy."""
        for _ in range(2):
            server = self._running()
            try:
                reply = server.ask(form)
            except _Hangs:
                if server.has_loaded():
                    log.error("the process that checks grammars does not answer; it is replaced")
                    server.kill()
                raise ChecksBusy("the process that checks grammars does not answer") from None
            except TimeoutError:
                raise ChecksBusy(f"the grammar was not checked within {_DEADLINE_S:g} s") from None
            if reply:
                return _verdict(reply)
            server.kill()  # it is ending, or has ended
        raise ChecksBusy("the process that checks grammars has ended")

    def _running(self) -> "_Server":
        """The running grammar server. Raises ChecksBusy once closed, since a server started then
        would never be ended."""
        with self._server_lock:
            if self._closed:
                raise ChecksBusy("no grammars are checked any more")
            if self._server is None or not self._server.is_alive():
                self._server = _Server(self._arguments)
            return self._server


class _Server:
    def __init__(self, arguments: Sequence[str]) -> None:
        self._has_answered, self._loaded_by = False, time.monotonic() + _LOAD_S
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_DEADLINE_S)
        with theirs:
            command = [sys.executable, "-m", "coordinator.text.grammar_server"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def ask(self, form: bytes) -> bytes:
        """The reply to a form, or the part of it that came: b"" if the server has ended, at least
        ``BEGUN`` if the child was killed. Raises _Hangs if no child begins in time, and
        TimeoutError if a child stalls."""
        mine, theirs = socket.socketpair()
        with mine:
            mine.settimeout(_DEADLINE_S)
            try:
                with theirs:
                    socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                begun = mine.recv(len(BEGUN))
            except TimeoutError:
                raise _Hangs from None
            except OSError:
                return b""
            self._has_answered |= begun == BEGUN
            try:
                mine.sendall(form)
                mine.shutdown(socket.SHUT_WR)
            except TimeoutError:
                raise
            except OSError:
                pass  # what is read tells why
            return begun + _all_of(mine)

    def has_loaded(self) -> bool:
        """True if the server has loaded the vocabulary, or has had the time to."""
        return self._has_answered or time.monotonic() > self._loaded_by

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


def _size(form: bytes, asked: Future[Verdict]) -> int:
    verdict = asked.result()
    told = sum(map(len, verdict.warnings))
    return len(form) + len(verdict.grammar) + len(verdict.problem) + told


def _verdict(reply: bytes) -> Verdict:
    """The verdict in a reply. A reply that is cut off comes from a child that was killed."""
    try:
        return msgspec.json.decode(reply, type=Verdict)
    except msgspec.DecodeError:
        return Verdict(problem=TOO_MUCH)


def _all_of(connection: socket.socket) -> bytes:
    """All bytes until the other end is closed. Raises TimeoutError."""
    pieces: list[bytes] = []
    try:
        while piece := connection.recv(65_536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)
