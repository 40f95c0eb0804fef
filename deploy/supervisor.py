"""The supervisor of ``baton up``: starts, restarts and ends Baton's processes on this machine.

Lifecycle of ``run``, on one event loop:
 1. start   Redis, unless one was given; then the coordinator and all workers at the same time
 2. ready   print the ready lines, once every service has reported READY=1
 3. serve   pass on logs; restart a service that dies, after a delay that grows; the coordinator at
            once the first three times in a minute
 4. drain   the coordinator (it takes no new request and finishes what runs), the workers, Redis

The HTTP socket stays open here until the drain, so clients that connect while the coordinator
restarts wait in its queue. A coordinator that ends by SIGTERM leaves waiting connections to its
successor. A coordinator that ends by SIGINT, which the drain sends, refuses them.

Before the ready lines, everything ends at once if Redis cannot start, or if another service says by
its exit code (2 or 75) that it cannot. Later, Redis is restarted without limit, and so is a service
whose exit code is 75 (the coordinator, while Redis does not answer). Any other service has three
starts in a row to get ready before everything ends. A worker is restarted without limit while
another worker of its pool is ready.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from deploy.console import Console
from deploy.managed_process import (
    ManagedProcess,
    NotifySocket,
    RestartPolicy,
    describe_exit,
)
from deploy.rundir import notify_socket
from deploy.services import Service
from telemetry.last_words import CANNOT_START, TRY_AGAIN
from telemetry.notify import notify
from transport.copy import shm

# The coordinator gets this on top of its own drain deadline: 5 s for the last responses, 3 s for
# the record.
DRAIN_GRACE_S = 10.0
_WORKER_STOP_S = 10.0
_REDIS_STOP_S = 5.0
_KILL_S = 5.0
# One order to stop may arrive twice at the same time: `timeout` and `make` both signal a process
# and its group. Only a later signal means "at once".
_SAME_ORDER_S = 1.0


StopSignals = asyncio.Queue[signal.Signals]


class Supervisor:
    """One run of a set of services. ``run`` may be called once, on the main thread.

    Exit code: 0 drained after a signal; 1 hurried by a second signal, or a process had to be
    killed; else the exit code of the service that could not be restarted, whose message comes last.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        listener: socket.socket,
        run_dir: Path,
        stop_signals: StopSignals,
        console: Console,
        ready_lines: list[str],
        drain_timeout_s: float,
    ) -> None:
        self._services = services
        self._listener = listener
        self._stop_signals = stop_signals
        self._console = console
        self._ready_lines = ready_lines
        self._drain_timeout_s = drain_timeout_s
        self._loop = asyncio.get_running_loop()
        self._notices = NotifySocket(notify_socket(run_dir))
        self._loop.add_reader(self._notices.fileno(), self._receive_notices)
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, ManagedProcess] = {}
        self._progressed = asyncio.Event()
        self._was_ready = False
        self._stopping = asyncio.Event()
        self._stop_at = 0.0
        self._exit_code = 0
        self._failure = ""
        self._hurried = self._loop.create_future()
        self._killed = False

    async def run(self) -> int:
        """Serve until a signal comes or a service cannot be restarted; returns the exit code."""
        redis = [service for service in self._services if service.is_redis]
        coordinator = [service for service in self._services if service.is_coordinator]
        workers = [each for each in self._services if each not in redis + coordinator]
        async with asyncio.TaskGroup() as tasks:
            signals = tasks.create_task(self._obey_signals())
            await self._start(redis, tasks)
            await self._start(coordinator + workers, tasks)
            if not self._stopping.is_set():
                self._was_ready = True
                self._console.ready(self._ready_lines)
                notify(READY=1, STATUS=self._ready_lines[-1])
            await self._stopping.wait()
            self._listener.close()  # the coordinator still has it, and answers until it ends
            await self._end(coordinator, self._drain_timeout_s + DRAIN_GRACE_S)
            await self._end(workers, _WORKER_STOP_S)
            await self._end(redis, _REDIS_STOP_S)
            for task in (signals, *self._keepers.values()):
                task.cancel()
        self._console.close()
        if self._failure:
            self._console.say(f"error: {self._failure}")
        return self._exit_code or int(self._hurried.done() or self._killed)

    async def _start(self, services: Sequence[Service], tasks: asyncio.TaskGroup) -> None:
        """Start ``services``, and wait until they are ready or everything stops."""
        for service in services:
            self._keepers[service.name] = tasks.create_task(self._keep(service))
        while not (self._stopping.is_set() or all(map(self._is_ready, services))):
            self._progressed.clear()
            await self._progressed.wait()

    def _is_ready(self, service: Service) -> bool:
        process = self._processes.get(service.name)
        return process is not None and process.ready

    # ---- one service

    async def _keep(self, service: Service) -> None:
        """Run ``service`` and restart it, until everything stops."""
        # One coordinator serves all clients, and starts within seconds.
        restarts = partial(RestartPolicy, num_at_once=3, max_s=5.0)
        policy = restarts() if service.is_coordinator else RestartPolicy()
        while not self._stopping.is_set():
            code, reason, ready_for_s = await self._run_once(service)
            if self._stopping.is_set():
                self._console.status(service.name, "stopped" if code == 0 else reason)
                return
            shm.sweep()
            delay_s = policy.delay_s(
                ready_for_s=ready_for_s,
                keep_trying=service.is_redis or self._another_serves(service),
                try_again=code == TRY_AGAIN,
                planned=code == 0 and service.is_coordinator,
            )
            no_redis = service.is_redis and ready_for_s is None
            if not self._was_ready and (no_redis or code in (CANNOT_START, TRY_AGAIN)):
                self._stop(CANNOT_START, f"{service.name}: {reason}")
            elif delay_s is None:
                self._stop(max(code, 1), f"{service.name}: {reason}")
            else:
                self._console.status(service.name, f"{reason}; starts again in {delay_s:g} s")
                await self._stopping_within(delay_s)

    async def _run_once(self, service: Service) -> tuple[int, str, float | None]:
        """Run one process of ``service`` to its end. Returns its exit code, why it ended, and for
        how many seconds it had been ready (None: never)."""
        try:
            process = ManagedProcess(service)
        except OSError as error:
            return 1, f"cannot start: {error}", None
        self._processes[service.name] = process
        self._console.status(service.name, "starting")
        code = await process.run(partial(self._on_line, process))
        self._receive_notices()
        del self._processes[service.name]
        for line in process.last_lines if service.is_redis and code else ():
            self._console.log(service.name, line)
        return code, process.error or describe_exit(code), process.ready_for_s

    def _another_serves(self, service: Service) -> bool:
        """True if another worker of its pool is ready. A worker that cannot come back, for want of
        a healthy GPU, is no reason to end the others."""
        pool = [other for other in self._services if other.role == service.role]
        return any(self._is_ready(other) for other in pool if other is not service)

    def _on_line(self, process: ManagedProcess, line: str) -> None:
        service = process.service
        if service.ready_line and service.ready_line in line.lower():
            self._on_progress(process, "ready", True)
        if not service.is_redis:
            self._console.log(service.name, line)

    def _receive_notices(self) -> None:
        for notice in self._notices.receive():
            for process in self._processes.values():
                if process.pid == notice.pid:
                    status = notice.status or process.status
                    self._on_progress(process, status, notice.ready, notice.fraction)

    def _on_progress(
        self, process: ManagedProcess, status: str, ready: bool, fraction: float | None = None
    ) -> None:
        process.progressed(status, ready=ready)
        self._console.status(process.service.name, "ready" if ready else status, fraction)
        self._progressed.set()

    # ---- the end

    async def _obey_signals(self) -> None:
        while True:
            number = await self._stop_signals.get()
            if not self._stopping.is_set():
                self._console.say(f"{number.name}: draining; once more to stop at once")
                self._stop(0)
            elif self._loop.time() - self._stop_at > _SAME_ORDER_S and not self._hurried.done():
                self._hurried.set_result(None)

    def _stop(self, exit_code: int, failure: str = "") -> None:
        """Begin the drain. Only the first call has an effect."""
        if not self._stopping.is_set():
            self._exit_code, self._failure = exit_code, failure
            self._stop_at = self._loop.time()
            self._stopping.set()
            self._progressed.set()

    async def _stopping_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _end(self, services: Sequence[Service], deadline_s: float) -> None:
        """Tell ``services`` to end, and kill them at the deadline or at a second signal."""
        for process in self._running(services):
            final = process.service.is_coordinator and process.ready
            (process.interrupt if final else process.terminate)()
        keepers = [self._keepers[each.name] for each in services if each.name in self._keepers]
        if keepers:
            ended = asyncio.gather(*keepers)
            await asyncio.wait(
                [ended, self._hurried], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            for process in self._running(services):
                self._killed = True
                self._console.status(process.service.name, "still running; killing it")
                process.kill()
            await asyncio.wait([ended], timeout=_KILL_S)

    def _running(self, services: Sequence[Service]) -> list[ManagedProcess]:
        names = [service.name for service in services]
        return [self._processes[name] for name in names if name in self._processes]
