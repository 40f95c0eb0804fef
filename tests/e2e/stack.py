"""A real ``baton up``: its services, their output, and what must not be left of them."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import redis

from tests.deploy.running import all_dead
from tests.e2e.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 20.0
SEGMENTS = Path("/dev/shm")


def environment(**settings: object) -> dict[str, str]:
    """This process's environment without Baton's settings, and with ``settings`` as BATON_*."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    ours = {f"BATON_{name.upper()}": str(value) for name, value in settings.items()}
    return clean | {"PYTHONPATH": str(ROOT), "BATON_THREADS": "1"} | ours


class Stack:
    """One ``baton up`` in a base folder of its own; usable once ``start`` has returned.

    Everything it prints goes to ``text`` and to standard output, where pytest shows it.
    """

    def __init__(self, model: Path, *args: str, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="e", dir="/tmp")
        self.base = Path(self._folder.name)
        self.text = ""
        self.url = ""
        self._pids: set[int] = set()
        self._printed = threading.Condition()
        self._ended = False
        command = (sys.executable, "-m", "deploy.cli", "up", "--port", "0", "--model", str(model))
        self.process = subprocess.Popen(
            [*command, *args],
            env=environment(**settings) | {"XDG_RUNTIME_DIR": str(self.base)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def start(self) -> "Stack":
        try:
            self.url = self.until(r"^ready: (\S+)", START_S).group(1)
            self.pids()
        except BaseException:
            self.close()
            raise
        return self

    # ---- what it says

    def until(self, pattern: str, deadline_s: float, since: int = 0) -> re.Match[str]:
        """Wait until ``pattern`` is printed after the first ``since`` characters."""
        deadline = time.monotonic() + deadline_s
        with self._printed:
            while (found := re.search(pattern, self.text[since:], re.MULTILINE)) is None:
                left_s = deadline - time.monotonic()
                assert left_s > 0 and not self._ended, f"{pattern!r} missing in:\n{self.text}"  # noqa: PT018
                self._printed.wait(left_s)
        return found

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.echo(line.decode(errors="replace"))
            with self._printed:
                self.text += line.decode(errors="replace")
                self._printed.notify_all()
        with self._printed:
            self._ended = True
            self._printed.notify_all()

    def echo(self, line: str) -> None:
        """What becomes of a line that it prints, besides ``text``."""
        print(line, end="")

    async def status(self) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=5.0) as http:
            try:
                answer = await http.get(f"{self.url}/status")
            except httpx.TransportError as error:
                raise AssertionError(f"/status: {error!r}") from error
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()
        return status

    async def idle(self, num_workers: int, deadline_s: float = 20.0) -> dict[str, Any]:
        """Wait until all workers are there, nothing is open and everything is free."""

        async def check() -> dict[str, Any]:
            status = await self.status()
            assert (status["queued"], status["running"]) == (0, 0), status
            assert len(status["workers"]) == num_workers, status
            for worker in status["workers"]:
                assert worker["accounting_error"] == "", worker
                assert worker["free_pages"] == worker["num_pages"], worker
                assert worker["free_state_slots"] == worker["num_state_slots"], worker
            return status

        return await eventually(check, "everything free", deadline_s)

    # ---- its processes

    def pids(self) -> dict[str, int]:
        """Process id by service ("coordinator", "prefill-1", …) of the services alive now."""
        found = {}
        for listing in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, listing.read_text().split()):
                self._pids.add(pid)
                if name := self.setting(pid, "BATON_SERVICE_NAME"):
                    found[name] = pid
        return found

    def setting(self, pid: int, name: str) -> str:
        """What a process was given in the environment; "" when it has gone."""
        try:
            listing = Path(f"/proc/{pid}/environ").read_bytes().decode()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return dict(line.partition("=")[::2] for line in listing.split("\0")).get(name, "")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pids()[name], number)

    @property
    def endpoint(self) -> str:
        """Where workers find the coordinator."""
        workers = (pid for name, pid in self.pids().items() if name != "coordinator")
        return self.setting(next(workers), "BATON_COORDINATOR")

    @property
    def channel_secret(self) -> str:
        """What a worker must know to join."""
        return self.setting(self.pids()["coordinator"], "BATON_CHANNEL_SECRET")

    def redis(self) -> "redis.Redis[str]":
        url = self.setting(self.pids()["coordinator"], "BATON_REDIS_URL")
        return redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0)

    # ---- its end

    def stop(self) -> int:
        """SIGTERM; the exit code, once it has been checked that nothing is left."""
        self.pids()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_S)
        self.assert_nothing_left()
        return code

    def assert_nothing_left(self, deadline_s: float = 0.5) -> None:
        assert all_dead(sorted(self._pids), deadline_s), "processes outlived baton up"
        assert list(self.base.iterdir()) == []
        instances = set(re.findall(r"\b(?:prefill|decode|colocated)-[0-9a-f]{8}\b", self.text))
        segments = {path.name for path in SEGMENTS.glob("baton-*")}
        assert not {f"baton-{instance}" for instance in instances} & segments

    def close(self) -> None:
        """However the test ended: nothing of it runs on."""
        self.process.kill()
        self.process.wait()
        all_dead(sorted(self._pids), 5.0)
        self._folder.cleanup()
