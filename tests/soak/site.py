"""The stack under test: a real ``baton up``, and a Redis of its own that faults may end."""

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import redis

from bench.prometheus import total
from coordinator.core.hub import SLOW
from tests.e2e.stack import SEGMENTS, Stack
from tests.local_redis import LocalRedis
from tests.soak import tenants

START_S = 300.0
HEARTBEAT_S = 0.5
DEAD_AFTER_S = 3.0
_LEFT_OUT = SLOW.format("")
_RETRIED = re.compile(r"\bretried http_id=(\w+)")


class _LoggedStack(Stack):
    """A stack with the delays of users before restarts, whose output goes to a file."""

    module = "deploy.cli"

    log: IO[str]

    def took(self, line: str) -> None:
        self.log.write(line)
        self.log.flush()

    def headers(self) -> dict[str, str]:
        return tenants.headers()


class Site:
    """``baton up`` with ``arguments``, in ``folder``; ``baton.log`` there holds all it printed."""

    def __init__(self, folder: Path, model: Path, arguments: Sequence[str]) -> None:
        self._redis_folder = folder / "redis"
        self._redis_folder.mkdir(mode=0o700)
        self.redis_server = LocalRedis(self._redis_folder)
        self.redis_server.start()
        self._instances: set[str] = set()
        self._log = folder / "baton.log"
        _LoggedStack.log = self._log.open("w")
        self.stack = _LoggedStack(
            model, *arguments, "--redis-url", self.redis_server.url,
            heartbeat=HEARTBEAT_S, dead_after=DEAD_AFTER_S, page_size=16, num_pages=1024,
            max_batch_tokens=256, poison=True, verify_handoff=True, log_level="warning",
            api_keys=tenants.setting(),
        ).start(START_S)  # fmt: skip
        self.num_workers = len(self.workers())
        self.redis = redis.Redis.from_url(
            self.redis_server.url, decode_responses=True, socket_timeout=5.0
        )

    def workers(self, role: str = "") -> list[str]:
        """Names of the live worker processes."""
        names = [name for name in self.stack.pids() if name != "coordinator"]
        return sorted(name for name in names if name.startswith(role))

    def signal(self, name: str, number: signal.Signals) -> int:
        """Signal a service by its name; its process id."""
        pid = self.stack.pids()[name]
        os.kill(pid, number)
        return pid

    def restart_redis(self) -> None:
        """Another server, empty, at the same address; the old one was ended."""
        self.redis_server = LocalRedis(self._redis_folder)
        self.redis_server.start()

    async def whole(self) -> str:
        """What is missing: a worker, or one that takes work, or Redis. "" when nothing is. A
        worker that was slow is left out of spread steps for longer than a round, and serves."""
        try:
            status = await self.stack.status()
        except AssertionError as error:
            return str(error)
        workers: list[dict[str, Any]] = status["workers"]
        self._instances |= {worker["instance"] for worker in workers}
        if len(workers) != self.num_workers:
            return f"{len(workers)} of {self.num_workers} workers"
        if draining := [worker["instance"] for worker in workers if worker.get("draining")]:
            return f"{', '.join(draining)} still drain"
        problems = [said for said in status.get("problems", ()) if not said.endswith(_LEFT_OUT)]
        if problems:
            return f"problems: {problems}"
        return "" if status.get("redis_connected", True) else "Redis is not connected"

    async def spread_steps(self) -> int:
        """Spread steps that the live workers have taken since they started."""
        async with httpx.AsyncClient(timeout=5.0) as http:
            text = (await http.get(f"{self.stack.url}/metrics")).text
        return int(total(text, ["baton_spread_steps_total"]) or 0)

    def retried(self) -> set[str]:
        """Ids of the HTTP requests that went to another worker after a loss, by the log."""
        return set(_RETRIED.findall(self._log.read_text()))

    async def unreleased(self) -> str:
        """What is queued, running or held; "" when nothing is."""
        try:
            status = await self.stack.status()
        except AssertionError as error:
            return str(error)
        if status["queued"] or status["running"]:
            return f"{status['queued']} queued, {status['running']} running"
        for worker in status["workers"]:
            if worker["accounting_error"]:
                return f"{worker['instance']}: {worker['accounting_error']}"
            for kind in ("pages", "state_slots"):
                free, there = worker[f"free_{kind}"], worker[f"num_{kind}"]
                if free != there:
                    return f"{worker['instance']}: {there - free} {kind} held"
        return ""

    def stop(self) -> list[str]:
        """Drain and stop all; what was left behind or went wrong."""
        problems = []
        began = time.monotonic()
        try:
            if code := self.stack.stop():
                problems.append(f"baton up ended with {code}")
        except Exception as error:
            problems.append(f"stop: {error}")
        stop_s = time.monotonic() - began
        self.stack.close()
        self.redis.close()
        self.redis_server.stop()
        left = [name for name in self._instances if (SEGMENTS / f"baton-{name}").exists()]
        if left:
            problems.append(f"left in {SEGMENTS}: the memory of {', '.join(left)}")
        if stop_s > 20.0:
            problems.append(f"the stop took {stop_s:.1f} s")
        return problems
