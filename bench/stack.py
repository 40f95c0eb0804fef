"""A whole ``baton up`` on a free port: started, watched, stopped with nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.client.required import RequestFailed

ROOT = Path(__file__).resolve().parent.parent
START_S = 180.0
STOP_S = 60.0
_READY = re.compile(r"^ready: (http://\S+)", re.MULTILINE)
_MIB = 1024


class StackFailed(Exception):
    """It did not become ready; the message holds its last words."""


class Stack:
    """A running stack at ``url``."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._pid = pid

    def processes(self) -> dict[str, int]:
        """Process ids by service: coordinator, prefill, decode, both."""
        found = {}
        for child in _children(self._pid):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            name = words[words.index(b"-m") + 1].decode() if b"-m" in words else ""
            if name in ("coordinator", "prefill", "decode", "colocated"):
                found[name] = child
        return found

    def memory_mib(self) -> dict[str, float]:
        """Resident memory by service, without the shared cache: that has a fixed size, and counts
        from when each page is first touched."""
        return {name: _private_mib(pid) for name, pid in self.processes().items()}

    def cpu_s(self) -> dict[str, float]:
        """CPU time used so far by service."""
        return {name: _cpu_s(pid) for name, pid in self.processes().items()}


@contextmanager
def running(
    model: Path, *arguments: str, device: str = "cpu", start_s: float = START_S
) -> Iterator[Stack]:
    """Serve ``model``, with more ``arguments`` of ``baton up``; raises StackFailed."""
    command = [sys.executable, "-m", "deploy.cli", "up", "--model", str(model)]
    command += ["--device", device, "--port", "0", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    path = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command,
        env={**clean, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output = _Output(process)
    try:
        yield Stack(output.ready(start_s), process.pid)
    except RequestFailed as error:
        raise StackFailed(f"{error}\n{output.last_words()}") from error
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.join()


class _Output:
    """Reads what the stack prints, so that it never blocks, and keeps the end of it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=40)
        self._url: str | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def ready(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._url is None and not self._over:
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            if self._url is None:
                words = "\n".join(self._lines)
                raise StackFailed(f"no ready line within {timeout_s:.0f} s:\n{words}")
            return self._url

    def last_words(self) -> str:
        with self._changed:
            return "\n".join(self._lines)

    def join(self) -> None:
        self._thread.join(STOP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                if " INFO " not in line:  # one for each request
                    self._lines.append(line.rstrip())
                if found := _READY.match(line):
                    self._url = found[1]
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _children(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


def _private_mib(pid: int) -> float:
    sizes = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssFile")) / _MIB


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
