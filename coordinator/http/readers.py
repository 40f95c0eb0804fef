"""The processes that read heavy bodies, and the queues before them, fair by owner.

An owner is a key, or without keys a client's address. It has all processes but one at most, so that
one is left for the others. Owners that wait take turns. A body whose client has left is not read.

A start takes over a second, most bodies 10 to 50 ms. So a body is given a process that has loaded;
while bodies wait, one more is started in the background, and they take whichever is free first.
"""

import asyncio
import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordinator.http.body_reader import Job, ReaderDied, ReaderProcess
from coordinator.http.errors import ApiError
from coordinator.http.preparation import Prepared
from coordinator.http.request_parser import parse
from coordinator.http.request_schemas import GenerationRequest
from transport.wire.token_ids import from_wire

log = logging.getLogger(__name__)

MAX_WAITING = 4_096
MAX_WAITING_OF_ONE = 1_024
_MAX_WAIT_S = 60.0
_DEADLINE_S = 30.0
_RETRY_AFTER_S = 2.0


class Readers:
    """``num_processes`` readers of bodies for the tokenizer in ``model``, 2 at least; by default a
    quarter of the cores, up to 4. Safe to use from several event loops."""

    def __init__(
        self, model: Path, num_processes: int = 0, *, deadline_s: float = _DEADLINE_S
    ) -> None:
        num_processes = num_processes or min(4, max(2, (os.cpu_count() or 1) // 4))
        assert num_processes > 1, "an owner could have them all"
        self._all = [ReaderProcess(model, deadline_s) for _ in range(num_processes)]
        self._cold = self._all.copy()  # neither started nor being started
        self._free: list[ReaderProcess] = []  # started, the one to use next at the end
        self._is_starting = self._is_closed = False
        self._busy: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Ticket]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="reader")

    def start_one(self) -> None:
        """Start a process in the background where none is, so that the next heavy body need not
        wait for it."""
        with self._lock:
            if len(self._cold) == len(self._all):
                self._start_another()

    async def read(self, owner: str, job: Job, body: Sequence[bytes]) -> Prepared | bytes:
        """What the job makes of the body. Raises ApiError: the body's fault, a 429 where the owner
        has too many waiting, a 503 where all have, and where it cannot be read in time."""
        process = await self._turn(owner)
        asked = self._threads.submit(_ask, process, job, body)
        asked.add_done_callback(lambda _: self._give_back(owner, process))
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        """Kill the processes; what waits is not read any more."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.kill()

    async def _turn(self, owner: str) -> ReaderProcess:
        ticket = _Ticket(asyncio.get_running_loop())
        with self._lock:
            self._wait(owner, ticket)
            self._grant()
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                await ticket.granted
        except BaseException as error:
            with self._lock:
                self._forget(owner, ticket)
            if ticket.process is not None:
                self._give_back(owner, ticket.process)
            if isinstance(error, TimeoutError):
                message = f"the body waited {_MAX_WAIT_S:g} s to be read"
                raise _refused(503, message) from None
            raise
        assert ticket.process is not None
        return ticket.process

    def _wait(self, owner: str, ticket: "_Ticket") -> None:
        waiting = self._waiting.get(owner, ())
        if len(waiting) >= MAX_WAITING_OF_ONE:
            raise _refused(429, f"{len(waiting)} of your bodies wait to be read already")
        if (num := sum(map(len, self._waiting.values()))) >= MAX_WAITING:
            raise _refused(503, f"{num} bodies wait to be read already")
        self._waiting.setdefault(owner, deque()).append(ticket)

    def _forget(self, owner: str, ticket: "_Ticket") -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[owner]

    def _give_back(self, owner: str, process: ReaderProcess) -> None:
        with self._lock:
            (self._free if process.is_running else self._cold).append(process)
            self._busy[owner] -= 1
            if not self._busy[owner]:
                del self._busy[owner]
            self._grant()

    def _grant(self) -> None:
        """Free processes to those that wait, an owner after the other. Where there are too few,
        another is started."""
        while (owner := self._next_owner()) is not None:
            if not self._free:
                self._start_another()
                return
            ticket = self._waiting[owner].popleft()
            self._waiting.move_to_end(owner)
            if not self._waiting[owner]:
                del self._waiting[owner]
            if ticket.grant(self._free[-1]):
                self._free.pop()
                self._busy[owner] += 1

    def _start_another(self) -> None:
        """One at a time."""
        if self._cold and not self._is_starting and not self._is_closed:
            self._is_starting = True
            self._threads.submit(self._start, self._cold.pop())

    def _start(self, process: ReaderProcess) -> None:
        try:
            process.start()
        except ReaderDied as error:
            if not self._is_closed:
                log.warning(
                    "a reader of bodies was not started, its next body tries again: %s", error
                )
        finally:
            with self._lock:
                self._is_starting = False
                # One that did not start is free too, after the others: a body that gets it has it
                # started again or is refused, and none waits for ever.
                self._free.insert(len(self._free) if process.is_running else 0, process)
                self._grant()

    def _next_owner(self) -> str | None:
        most = len(self._all) - 1
        return next((owner for owner in self._waiting if self._busy[owner] < most), None)


class _Ticket:
    """One that waits for a process; ``granted`` is set once ``process`` is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.granted: asyncio.Future[None] = loop.create_future()
        self.process: ReaderProcess | None = None

    def grant(self, process: ReaderProcess) -> bool:
        """From any thread; False where the loop that waits has been closed."""
        self.process = process  # before its loop can see that it was granted
        try:
            self.granted.get_loop().call_soon_threadsafe(self._set)
        except RuntimeError:
            self.process = None
            return False
        return True

    def _set(self) -> None:
        if not self.granted.done():
            self.granted.set_result(None)


def _ask(process: ReaderProcess, job: Job, body: Sequence[bytes]) -> Prepared | bytes:
    try:
        reply, data = process.ask(job, body)
    except ReaderDied as error:
        log.error("a body of %d bytes was not read: %s", job.num_bytes, error)
        raise _refused(503, "the body could not be read") from None
    if (refusal := reply.refusal) is not None:
        if refusal.bug:
            log.error("unhandled error in the reader of bodies:\n%s", refusal.bug)
        raise ApiError(
            refusal.status, refusal.message, param=refusal.param, code=refusal.code,
            headers=refusal.headers,
        )  # fmt: skip
    if reply.request is None:
        return data
    request = parse(reply.kind, reply.request)
    assert isinstance(request, GenerationRequest)
    ids, prompts, end = from_wire(data), [], 0
    for length in reply.lens:
        prompts.append(ids[end : end + length])
        end += length
    return Prepared(request, prompts, reply.echoes, reply.origin)


def _refused(status: int, message: str) -> ApiError:
    code = "overloaded" if status == 503 else "rate_limit_exceeded"
    return ApiError(status, message, code=code, retry_after_s=_RETRY_AFTER_S)
