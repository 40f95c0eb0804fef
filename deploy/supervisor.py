"""The local supervisor: starts Baton's processes on this machine, keeps them, ends them.

Lifecycle of ``run``, all on the main thread, one selector, no polling:
 1. start   Redis, then coordinator and workers all at once
 2. wait    until each has said READY=1; print the ready line
 3. serve   pass on logs; a service that dies starts again, later each time
 4. drain   coordinator first (it takes nothing new and finishes what runs), workers, Redis

The HTTP socket stays open here until the drain, so that clients of a coordinator that starts again
wait in its queue. Told to end by SIGTERM it leaves what comes to its successor; by SIGINT, which
the drain sends, it refuses that.

What wakes it: notices (notify_socket.py), output, deaths (pidfds), signals (a wake-up fd) and
deadlines. A service that cannot start ends everything: at once if it says so (exit code 2, or 75)
before the ready line. Later one that lacks something for the time being, as the coordinator Redis
(exit code 75), is tried again and again. Any other ends everything after three starts in a row
that never got ready, unless others of its pool are ready: they serve on, and it is tried on.
"""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from deploy.child import Child, describe_exit
from deploy.console import Display
from deploy.guardian import Guardian
from deploy.notify_socket import Notice, NotifySocket
from deploy.post import Post
from deploy.redis_post import RedisPost
from deploy.services import Service
from deploy.signals import StopSignals
from telemetry.last_words import CANNOT_START, TRY_AGAIN
from telemetry.notify import notify
from transport.copy import shm
from transport.wire.errors import BatonError

# What the coordinator gets on top of its own drain deadline: 5 s for the last responses, 3 s for
# the record.
DRAIN_GRACE_S = 10.0
_WORKER_STOP_S = 10.0
_REDIS_STOP_S = 5.0
_KILL_S = 5.0
# One order to stop may arrive twice at once: `timeout` and `make` both signal a process and
# its group. Only a later one is meant as "now".
_SAME_ORDER_S = 1.0


class Supervisor:
    """One run of a set of services. ``run`` may be called once, on the main thread.

    Exit codes: 0 drained after a signal; 1 hurried by a second signal, or something had to be
    killed; else that of the service that could not be kept, its message repeated.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        redis: RedisPost,
        listener: socket.socket,
        run_dir: Path,
        signals: StopSignals,
        guardian: Guardian,
        display: Display,
        ready_lines: list[str],
        drain_timeout_s: float,
    ) -> None:
        self._posts = [Post(service) for service in services]
        self._redis = redis
        self._listener = listener
        self._signals = signals
        self._guardian = guardian
        self._display = display
        self._ready_lines = ready_lines
        self._drain_timeout_s = drain_timeout_s
        self._selector = selectors.DefaultSelector()
        self._notices = NotifySocket(run_dir / "notify.sock")
        self._was_ready = False
        self._stop_code: int | None = None
        self._stop_message = ""
        self._stop_at = 0.0
        self._hurried = False
        self._killed = False

    def run(self) -> int:
        """Serve until told to stop or unable to go on; returns the exit code."""
        with ExitStack() as cleanup:
            cleanup.callback(self._display.close)
            cleanup.callback(self._notices.close)
            cleanup.callback(self._selector.close)
            self._watch(self._notices.fileno(), self._on_notices)
            self._watch(self._signals.fileno(), self._on_signal)
            self._watch_guardian()
            cleanup.callback(self._redis.stop, _REDIS_STOP_S)
            self._start_redis()
            cleanup.callback(self._kill, self._posts)
            for post in self._posts:
                self._start(post)
            while self._stop_code is None:
                self._turn(self._next_deadline())
                self._do_what_is_due()
            self._drain()
        if self._stop_message:
            self._display.say(f"error: {self._stop_message}")
        return self._stop_code or int(self._hurried or self._killed)

    # ---- the loop

    def _turn(self, deadline: float | None) -> None:
        """Wait for something to happen until ``deadline``, and handle what has."""
        timeout_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def _watch_guardian(self) -> None:
        if self._guardian.pidfd is not None:
            self._watch(self._guardian.pidfd, self._on_guardian_death)

    def _on_guardian_death(self) -> None:
        assert self._guardian.pidfd is not None
        self._selector.unregister(self._guardian.pidfd)
        replaced = self._guardian.replace()
        self._display.status("guardian", "died; started again" if replaced else "died too often")
        self._watch_guardian()

    def _next_deadline(self) -> float | None:
        deadlines = [self._redis.start_at, *(post.deadline for post in self._posts)]
        return min((at for at in deadlines if at is not None), default=None)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._redis.start_at is not None and self._redis.start_at <= now:
            self._restart_redis()
        for post in self._posts:
            if self._stop_code is None and post.deadline is not None and post.deadline <= now:
                post.overdue() if post.child is not None else self._start(post)

    def _on_signal(self) -> None:
        for number in self._signals.received():
            if self._stop_code is None:
                self._display.say(f"{number.name}: draining; once more to stop at once")
                self._stop(0)
            elif time.monotonic() - self._stop_at > _SAME_ORDER_S:
                self._hurried = True

    def _stop(self, code: int, message: str = "") -> None:
        if self._stop_code is None:
            self._stop_code, self._stop_message = code, message
            self._stop_at = time.monotonic()

    # ---- one service's life

    def _start(self, post: Post) -> None:
        try:
            child = Child(post.service)
        except OSError as error:
            self._restart(post, 1, f"cannot start: {error}")
            return
        self._guardian.started(child.pid)
        post.taken(child, time.monotonic())
        self._watch(child.output, partial(self._on_output, post, child))
        self._watch(child.pidfd, partial(self._on_death, post, child))
        self._display.status(post.name, "starting")

    def _on_notices(self) -> None:
        for notice in self._notices.receive():
            for post in self._posts:
                if post.child is not None and post.child.pid == notice.pid:
                    self._on_notice(post, notice)

    def _on_notice(self, post: Post, notice: Notice) -> None:
        post.heard(notice, time.monotonic())
        self._display.status(post.name, "ready" if notice.ready else post.status, notice.fraction)
        if not self._was_ready and all(post.ready_at is not None for post in self._posts):
            self._was_ready = True
            self._display.ready(self._ready_lines)
            notify(READY=1)

    def _on_output(self, post: Post, child: Child) -> None:
        if post.child is not child:
            return  # it died earlier in this turn
        for line in child.read_lines():
            self._display.log(post.name, line)
        if child.output_ended:
            self._selector.unregister(child.output)

    def _on_death(self, post: Post, child: Child) -> None:
        self._on_notices()
        for line in child.read_rest():
            self._display.log(post.name, line)
        self._selector.unregister(child.pidfd)
        if not child.output_ended:
            self._selector.unregister(child.output)
        code = child.reap()
        self._guardian.ended(child.pid)
        if self._stop_code is None:
            shm.sweep()
            self._restart(post, code, child.error or describe_exit(code))
        else:
            post.vacated(time.monotonic())
            self._display.status(post.name, "stopped" if code == 0 else describe_exit(code))

    def _restart(self, post: Post, code: int, reason: str) -> None:
        others_serve = any(
            other.ready_at is not None and other.service.role == post.service.role
            for other in self._posts
            if other is not post
        )
        delay_s = post.vacated(
            time.monotonic(),
            others_serve=others_serve,
            try_again=code == TRY_AGAIN,
            planned=code == 0 and post.service.is_coordinator,
        )
        if not self._was_ready and code in (CANNOT_START, TRY_AGAIN):
            self._stop(CANNOT_START, f"{post.name}: {reason}")
        elif delay_s is None:
            self._stop(code if code > 0 else 1, f"{post.name}: {reason}")
        else:
            self._display.status(post.name, f"{reason}; starts again in {delay_s:g} s")

    # ---- Redis's life; without it the rest goes on

    def _start_redis(self) -> None:
        self._redis.start(time.monotonic())
        if self._redis.pid is not None and self._redis.pidfd is not None:
            self._guardian.started(self._redis.pid)
            self._watch(self._redis.pidfd, self._on_redis_death)
            self._display.status("redis", "ready")

    def _restart_redis(self) -> None:
        try:
            self._start_redis()
        except BatonError as error:
            delay_s = self._redis.vacate(time.monotonic())
            self._display.status("redis", f"{error}; starts again in {delay_s:g} s")

    def _on_redis_death(self) -> None:
        assert self._redis.pid is not None
        assert self._redis.pidfd is not None
        self._selector.unregister(self._redis.pidfd)
        self._guardian.ended(self._redis.pid)
        delay_s = self._redis.vacate(time.monotonic())
        self._display.status("redis", f"died; starts again in {delay_s:g} s")

    # ---- the end

    def _drain(self) -> None:
        self._listener.close()  # the coordinator has it still, and answers until it has ended
        coordinator = [post for post in self._posts if post.service.is_coordinator]
        workers = [post for post in self._posts if not post.service.is_coordinator]
        self._end(coordinator, self._drain_timeout_s + DRAIN_GRACE_S)
        self._end(workers, _WORKER_STOP_S)

    def _end(self, posts: list[Post], deadline_s: float) -> None:
        """Ask ``posts`` to end, and see to it once ``deadline_s`` is over or somebody hurries."""
        for post in posts:
            if post.child is not None:
                for_good = post.service.is_coordinator and post.ready_at is not None
                (post.child.interrupt if for_good else post.child.terminate)()
        deadline = time.monotonic() + deadline_s
        while _children(posts) and not self._hurried and time.monotonic() < deadline:
            self._turn(deadline)
        self._kill(posts)

    def _kill(self, posts: list[Post]) -> None:
        for post in posts:
            if post.child is not None:
                self._killed = True
                self._display.status(post.name, "still there; killing it")
                post.child.kill()
        deadline = time.monotonic() + _KILL_S
        while _children(posts) and time.monotonic() < deadline:
            self._turn(deadline)


def _children(posts: Sequence[Post]) -> list[Child]:
    return [post.child for post in posts if post.child is not None]
