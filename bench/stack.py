"""A whole ``baton up`` on a free port: started, watched, signalled and stopped. Benchmarks, tests
and the soak start their stacks with it. A stack dies with the process that started it.

NOTE: start a stack on the main thread (deploy/die_with_parent.py).
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from bench.environment import ROOT
from bench.harness.client.required import RequestFailed
from bench.prometheus import total
from deploy.die_with_parent import die_with_parent
from deploy.rundir import without_settings

START_S = 180.0
STOP_S = 60.0
ANSWER_S = 20.0
LAST_LINES = 40
_READY = r"^ready: (http://\S+)"
_MIB = 1024


class StackFailed(Exception):
    """The stack did not get ready, or ended too soon; the message has its last lines."""


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment without Baton's settings, and with ``settings`` as BATON_*."""
    clean = without_settings(os.environ)
    path = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH", "")]))
    ours = {f"BATON_{name.upper()}": str(value) for name, value in settings.items()}
    return {**clean, "PYTHONPATH": path, **ours}


class Stack:
    """One ``baton up`` with ``arguments`` in the environment ``environ``. It serves at ``url`` once
    ``start`` has returned. ``lines``: all lines that it has printed.

    ``stop`` drains it. ``close`` must follow, and kills whatever is left.
    """

    module = "deploy.cli"

    def __init__(self, *arguments: str, environ: Mapping[str, str], cwd: Path = ROOT) -> None:
        self.url = ""
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        command = [sys.executable, "-m", self.module, "up", "--port", "0", *arguments]
        self.process = self.launch(command, environ, cwd)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def launch(
        self, command: list[str], environ: Mapping[str, str], cwd: Path
    ) -> "subprocess.Popen[str]":
        """Start the process, in a session of its own."""
        return subprocess.Popen(
            die_with_parent(command),
            env=dict(environ),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def start(self, deadline_s: float = START_S) -> None:
        """Wait until it is ready. Raises StackFailed, and then leaves nothing running."""
        try:
            self.url = self.until(_READY, deadline_s)[1]
        except BaseException:
            self.close()
            raise

    # ---- its output

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def last_words(self) -> str:
        """The last lines of its output, without level INFO, which has a line for each request."""
        told = [line for line in self.lines[-100 * LAST_LINES :] if " INFO " not in line]
        return "".join(told[-LAST_LINES:])

    def until(self, pattern: str, deadline_s: float, since: int = 0) -> re.Match[str]:
        """Wait for a line with ``pattern`` after the first ``since`` lines. Raises StackFailed."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            while True:
                for line in self.lines[since:]:
                    if found := re.search(pattern, line.rstrip("\n")):
                        return found
                since = max(since, len(self.lines))
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0:
                    why = "the stack ended" if self._ended else f"{deadline_s:.0f} s have passed"
                    raise StackFailed(f"{pattern!r} was not printed: {why}:\n{self.last_words()}")
                self._changed.wait(left_s)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
            self.took(line)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def took(self, line: str) -> None:
        """Handle a line of its output; does nothing here."""

    # ---- its processes

    def children(self) -> list[int]:
        """Ids of the processes that it started and that are alive, services and others."""
        paths = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in paths for pid in path.read_text().split()]

    def pids(self) -> dict[str, int]:
        """Process ids of the services that are alive, by name ("coordinator", "prefill-1", …)."""
        named = {setting(pid, "BATON_SERVICE_NAME"): pid for pid in self.children()}
        named.pop("", None)
        return named

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a service; returns its process id."""
        pid = self.pids()[name]
        os.kill(pid, number)
        return pid

    def memory_mib(self) -> dict[str, float]:
        """Resident memory by role (coordinator, prefill, decode, colocated), without the shared
        cache: that has a fixed size, and each of its pages counts once it is touched."""
        return self._by_role(private_mib)

    def cpu_s(self) -> dict[str, float]:
        """CPU time used so far by role."""
        return self._by_role(_cpu_s)

    def _by_role(self, measure: Callable[[int], float]) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for name, pid in self.pids().items():
            found[name.partition("-")[0]] += measure(pid)
        return dict(found)

    # ---- what it says of itself

    def workers(self) -> list[dict[str, Any]]:
        """The workers in ``/status``. Raises httpx.HTTPError."""
        found: list[dict[str, Any]] = self._get("/status").json()["workers"]
        return found

    def counters(self, names: Iterable[str]) -> dict[str, float | None]:
        """Sums of ``baton_NAME_total`` over all services since their start, as of the last
        heartbeats; None for one that is not told. Raises httpx.HTTPError."""
        text = self._get("/metrics").text
        return {name: total(text, [f"baton_{name}_total"]) for name in names}

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=ANSWER_S).raise_for_status()

    # ---- its end

    def stop(self, deadline_s: float = STOP_S) -> int | None:
        """Send SIGTERM; returns the exit code, None if it has not ended by the deadline."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(deadline_s)
        return None

    def exit_code(self, deadline_s: float = STOP_S) -> int:
        """Wait until it has ended and ``lines`` are complete. Raises TimeoutExpired."""
        code = self.process.wait(deadline_s)
        self._reader.join(deadline_s)
        assert not self._reader.is_alive(), "a process that it left has its output open"
        return code

    def close(self) -> None:
        """Send SIGKILL if it still runs; its services die with it."""
        self.process.kill()
        self.process.wait()
        self._reader.join(STOP_S)


@contextmanager
def running(
    model: Path, *arguments: str, device: str = "cpu", start_s: float = START_S
) -> Iterator[Stack]:
    """Serve ``model`` while this is entered, with more ``arguments`` of ``baton up``. Raises
    StackFailed."""
    with started("--model", str(model), "--device", device, *arguments, start_s=start_s) as stack:
        try:
            yield stack
        except RequestFailed as error:
            raise StackFailed(f"{error}\n{stack.last_words()}") from error
        finally:
            stack.stop()


@contextmanager
def started(
    *arguments: str, settings: Mapping[str, object] | None = None, start_s: float = START_S
) -> Iterator[Stack]:
    """A ready stack with ``settings`` as BATON_* variables. It is killed when this is left, unless
    it was stopped. Raises StackFailed."""
    stack = Stack(*arguments, environ=environment(settings or {}))
    stack.start(start_s)
    try:
        yield stack
    finally:
        stack.close()


def setting(pid: int, name: str) -> str:
    """A variable in the environment of a process; "" if the process is gone."""
    try:
        listing = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return dict(line.partition("=")[::2] for line in listing.split("\0")).get(name, "")


def private_mib(pid: int) -> float:
    """Resident memory of a process, without shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssFile")) / _MIB


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
