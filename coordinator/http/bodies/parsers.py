"""Parses heavy bodies in other processes, with queues that are fair by owner.

Checking and tokenizing a long body holds the interpreter for up to half a second, in whichever
thread, so it is done in another process. An owner is an API key, or without keys a client's
address. One owner uses at most all processes but one: the last is left for the other owners. Owners
that wait take turns. A body whose client has disconnected is not parsed.

A start takes over a second, most bodies 10 to 50 ms. So a body is given a process that has loaded.
While bodies wait, one more process is started in the background, and they take whichever is free
first.

A pool of pebble would do as well in time: with four clients that repeat bodies of 8 MiB, a turn of
the event loop takes 0.4 ms of processor time with either, and a hung task is ended within 60 ms of
its deadline. It would save some 110 lines, those of parser_process.py. It is not used because it
pickles what it sends, wakes its threads ten times a second when idle, and starts all processes with
the first body.
"""

import asyncio
import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordinator.http.bodies.parser_process import ParserDied, ParserProcess
from coordinator.http.bodies.wire import Job
from coordinator.http.errors import ApiError
from coordinator.http.preparation import Prepared, parse
from coordinator.http.request_schemas import GenerationRequest
from transport.wire.token_ids import from_wire

log = logging.getLogger(__name__)

MAX_WAITING = 4_096
MAX_WAITING_PER_OWNER = 1_024
_MAX_WAIT_S = 60.0
_DEADLINE_S = 30.0
_RETRY_AFTER_S = 2.0


class BodyParsers:
    """``num_processes`` processes, 2 at least, that parse bodies for the tokenizer in ``model``; by
    default a quarter of the cores, up to 4. Safe to use from several event loops."""

    def __init__(
        self, model: Path, num_processes: int = 0, *, deadline_s: float = _DEADLINE_S
    ) -> None:
        num_processes = num_processes or min(4, max(2, (os.cpu_count() or 1) // 4))
        assert num_processes > 1, "an owner could use them all"
        self._all = [ParserProcess(model, deadline_s) for _ in range(num_processes)]
        self._not_started = self._all.copy()  # and not being started
        self._free: list[ParserProcess] = []  # started, the one to use next at the end
        self._is_starting = self._is_closed = False
        self._busy: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="body-parser")

    def start_one(self) -> None:
        """Start a process in the background if none has been started, so that the next heavy body
        need not wait for it."""
        with self._lock:
            if len(self._not_started) == len(self._all):
                self._start_another()

    async def parse(self, owner: str, job: Job, body: Sequence[bytes]) -> Prepared | bytes:
        """Parse ``body`` as ``job`` says: a prepared request, or the JSON of an answer.

        Raises ApiError: the body's fault; 429 if too many bodies of the owner wait; 503 if too many
        of all owners do, and if the body cannot be parsed in time.
        """
        process = await self._process_for(owner)
        parsing = self._threads.submit(_parse, process, job, body)
        parsing.add_done_callback(lambda _: self._give_back(owner, process))
        return await asyncio.wrap_future(parsing)

    def close(self) -> None:
        """Kill the processes; bodies that wait are not parsed any more."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.kill()

    async def _process_for(self, owner: str) -> ParserProcess:
        waiter = _Waiter(asyncio.get_running_loop())
        with self._lock:
            self._enqueue(owner, waiter)
            self._grant()
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                await waiter.granted
        except BaseException as error:
            with self._lock:
                self._dequeue(owner, waiter)
            if waiter.process is not None:
                self._give_back(owner, waiter.process)
            if isinstance(error, TimeoutError):
                message = f"the body waited {_MAX_WAIT_S:g} s to be read"
                raise _refused(503, message) from None
            raise
        assert waiter.process is not None
        return waiter.process

    def _enqueue(self, owner: str, waiter: "_Waiter") -> None:
        waiting = self._waiting.get(owner, ())
        if len(waiting) >= MAX_WAITING_PER_OWNER:
            raise _refused(429, f"{len(waiting)} of your bodies wait to be read already")
        if (num := sum(map(len, self._waiting.values()))) >= MAX_WAITING:
            raise _refused(503, f"{num} bodies wait to be read already")
        self._waiting.setdefault(owner, deque()).append(waiter)

    def _dequeue(self, owner: str, waiter: "_Waiter") -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[owner]

    def _give_back(self, owner: str, process: ParserProcess) -> None:
        with self._lock:
            (self._free if process.is_running else self._not_started).append(process)
            self._busy[owner] -= 1
            if not self._busy[owner]:
                del self._busy[owner]
            self._grant()

    def _grant(self) -> None:
        """Give free processes to bodies that wait, one owner after the other. If there are too few
        processes, start another one."""
        while (owner := self._next_owner()) is not None:
            if not self._free:
                self._start_another()
                return
            waiter = self._waiting[owner].popleft()
            self._waiting.move_to_end(owner)
            if not self._waiting[owner]:
                del self._waiting[owner]
            if waiter.grant(self._free[-1]):
                self._free.pop()
                self._busy[owner] += 1

    def _start_another(self) -> None:
        """Start one more process in the background, one at a time."""
        if self._not_started and not self._is_starting and not self._is_closed:
            self._is_starting = True
            self._threads.submit(self._start, self._not_started.pop())

    def _start(self, process: ParserProcess) -> None:
        try:
            process.start()
        except ParserDied as error:
            if not self._is_closed:
                log.warning("a body parser did not start; its next body starts it again: %s", error)
        finally:
            with self._lock:
                self._is_starting = False
                # A process that did not start is free too, after the others: a body that gets it
                # has it started again or is refused, so none waits for ever.
                self._free.insert(len(self._free) if process.is_running else 0, process)
                self._grant()

    def _next_owner(self) -> str | None:
        limit = len(self._all) - 1
        return next((owner for owner in self._waiting if self._busy[owner] < limit), None)


class _Waiter:
    """A body that waits for a process; ``granted`` is set once ``process`` is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.granted: asyncio.Future[None] = loop.create_future()
        self.process: ParserProcess | None = None

    def grant(self, process: ParserProcess) -> bool:
        """Give ``process`` to this body, from any thread. False if its event loop is closed."""
        self.process = process  # before ``granted`` is set
        try:
            self.granted.get_loop().call_soon_threadsafe(self._set)
        except RuntimeError:
            self.process = None
            return False
        return True

    def _set(self) -> None:
        if not self.granted.done():
            self.granted.set_result(None)


def _parse(process: ParserProcess, job: Job, body: Sequence[bytes]) -> Prepared | bytes:
    try:
        reply, data = process.parse(job, body)
    except ParserDied as error:
        log.error("a body of %d bytes was not parsed: %s", job.num_bytes, error)
        raise _refused(503, "the body could not be read") from None
    if (refusal := reply.refusal) is not None:
        if refusal.bug:
            log.error("unhandled error in a body parser:\n%s", refusal.bug)
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
