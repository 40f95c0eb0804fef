"""A real ``baton up`` under test: what it tells, and what must not be left of it."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import torch

from bench import stack
from bench.prometheus import series
from bench.stack import setting
from tests.deploy.running import all_dead
from tests.e2e.forks import Fork
from tests.e2e.waiting import eventually

START_S = 60.0
STOP_S = 20.0
SEGMENTS = Path("/dev/shm")
_execute = stack.Stack.launch


def environment(**settings: object) -> dict[str, str]:
    """This process's environment without Baton's settings, and with ``settings`` as BATON_*."""
    return stack.environment({"threads": 1, **settings})


def fork_stacks(patch: pytest.MonkeyPatch) -> None:
    """Let every bench.stack.Stack be one of forks, as ours are."""
    patch.setattr(stack.Stack, "module", Stack.module)
    patch.setattr(stack.Stack, "launch", Stack.launch)


class Stack(stack.Stack):
    """One ``baton up`` that serves ``model``, in a base folder of its own. Everything it prints
    goes to standard output too, where pytest shows it."""

    module = "tests.e2e.quick_up"

    def __init__(self, model: Path, *args: str, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="e", dir="/tmp")
        self.base = Path(self._folder.name)
        self._pids: set[int] = set()
        environ = environment(**settings) | {"XDG_RUNTIME_DIR": str(self.base)}
        super().__init__("--model", str(model), *args, environ=environ)

    def launch(self, command: list[str], environ: Mapping[str, str], cwd: Path) -> Any:
        if torch.cuda.is_available():
            return _execute(self, command, environ, cwd)
        return Fork(command, environ, cwd)

    def start(self, deadline_s: float = START_S) -> "Stack":
        super().start(deadline_s)
        self.pids()
        return self

    def took(self, line: str) -> None:
        print(line, end="")

    def headers(self) -> dict[str, str]:
        """Headers of requests to a stack with keys."""
        return {}

    async def status(self) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=5.0, headers=self.headers()) as http:
            try:
                answer = await http.get(f"{self.url}/status")
            except httpx.TransportError as error:
                raise AssertionError(f"/status: {error!r}") from error
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()
        return status

    async def metrics(self) -> str:
        """The coordinator's metrics."""
        async with httpx.AsyncClient(timeout=5.0, headers=self.headers()) as http:
            return (await http.get(f"{self.url}/metrics")).text

    async def retries(self) -> float:
        """How often requests were placed again."""
        return sum(value for _, value in series(await self.metrics(), "baton_retries_total"))

    async def moved(self) -> dict[str, float]:
        """How many requests have moved, by outcome, and by reason."""
        found = {"moved": 0.0, "stayed": 0.0}
        for labels, value in series(await self.metrics(), "baton_moves_total"):
            for name in (labels["outcome"], labels["reason"]):
                found[name] = found.get(name, 0.0) + value
        return found

    async def idle(self, num_workers: int, deadline_s: float = 20.0) -> dict[str, Any]:
        """Wait until all workers are there, nothing is open and everything is free."""

        async def check() -> dict[str, Any]:
            status = await self.status()
            assert len(status["workers"]) == num_workers, status
            assert_idle(status)
            return status

        return await eventually(check, "everything free", deadline_s)

    # ---- its processes

    def children(self) -> list[int]:
        found = super().children()
        self._pids |= set(found)
        return found

    @property
    def endpoint(self) -> str:
        """Where workers find the coordinator."""
        workers = (pid for name, pid in self.pids().items() if name != "coordinator")
        return setting(next(workers), "BATON_COORDINATOR")

    @property
    def channel_secret(self) -> str:
        """What a worker must know to join."""
        return setting(self.pids()["coordinator"], "BATON_CHANNEL_SECRET")

    @property
    def redis_url(self) -> str:
        return setting(self.pids()["coordinator"], "BATON_REDIS_URL")

    def redis(self) -> "redis.Redis[str]":
        return redis.Redis.from_url(self.redis_url, decode_responses=True, socket_timeout=5.0)

    # ---- its end

    def stop(self, deadline_s: float = STOP_S) -> int | None:
        """SIGTERM; the exit code, once it has been checked that nothing is left."""
        self.pids()
        code = super().stop(deadline_s)
        self.assert_nothing_left()
        return code

    def assert_nothing_left(self, deadline_s: float = 0.5) -> None:
        assert all_dead(sorted(self._pids), deadline_s), "processes outlived baton up"
        assert list(self.base.iterdir()) == []
        instances = set(
            re.findall(r"\b(?:prefill|decode|colocated|worker)-[0-9a-f]{8}\b", self.text)
        )
        segments = {path.name for path in SEGMENTS.glob("baton-*")}
        assert not {f"baton-{instance}" for instance in instances} & segments

    def close(self) -> None:
        """SIGKILL where it still runs: however the test ended, nothing of it runs on."""
        super().close()
        all_dead(sorted(self._pids), 5.0)
        self._folder.cleanup()


def assert_idle(status: dict[str, Any]) -> None:
    """Nothing is queued or running in this /status, and all memory is free."""
    assert (status["queued"], status["running"]) == (0, 0), status
    for worker in status["workers"]:
        assert worker["accounting_error"] == "", worker
        assert worker["free_pages"] == worker["num_pages"], worker
        assert worker["free_state_slots"] == worker["num_state_slots"], worker
