"""``baton up`` with stub services (stubs/stub.py), and what tests wait for without sleeping."""

import os
import re
import select
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bench.stack import ROOT, Stack, environment

STUBS = Path(__file__).resolve().parent / "stubs"
DEADLINE_S = 15.0


def stub_options(folder: Path) -> list[str]:
    """Options of a ``baton up`` on stubs, for a folder that is empty so far."""
    (folder / "run").mkdir()
    (folder / "journal").touch()
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return ["--device", "cpu", "--model", str(folder / "model")]


def stub_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a ``baton up`` on stubs."""
    clean = {k: v for k, v in environment({}).items() if not k.startswith("STUB_")}
    return {
        **clean, "PYTHONPATH": f"{STUBS}{os.pathsep}{ROOT}",
        "STUB_JOURNAL": str(folder / "journal"), "XDG_RUNTIME_DIR": str(folder / "run"),
        "BATON_REDIS_URL": "redis://unused", **environ,
    }  # fmt: skip


class Up(Stack):
    """One ``baton up`` whose services are stubs. What it prints once it is ready is not read while
    ``reading`` is clear."""

    module = "tests.deploy.quick_up"

    def __init__(self, folder: Path, *args: str, **environ: str) -> None:
        self.base, self.journal = folder / "run", folder / "journal"
        self.reading = threading.Event()
        self.reading.set()
        super().__init__(
            *stub_options(folder), *args, environ=stub_environment(folder, environ), cwd=folder
        )

    def took(self, line: str) -> None:
        if line.startswith("ready: "):
            self.reading.wait()

    def start(self, deadline_s: float = DEADLINE_S) -> None:
        super().start(deadline_s)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        return super().exit_code(deadline_s)

    def until(self, pattern: str, deadline_s: float = DEADLINE_S, since: int = 0) -> re.Match[str]:
        return super().until(pattern, deadline_s, since)

    def until_after(self, first: str, second: str) -> None:
        """Wait for a line with ``second`` behind the first line with ``first``."""
        self.until(first)
        since = next(i for i, line in enumerate(self.lines) if re.search(first, line))
        self.until(second, since=since + 1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reported(self, name: str = "") -> list[int]:
        """Processes that services called ``name…`` have reported, in order."""
        pairs = (line.split() for line in self.journal.read_text().splitlines())
        return [int(pid) for who, pid in pairs if pid != "stopped" and who.startswith(name)]

    def stops(self) -> list[str]:
        pairs = (line.split() for line in self.journal.read_text().splitlines())
        return [who for who, what in pairs if what == "stopped"]

    def leftovers(self) -> list[Path]:
        return list(self.base.iterdir())

    def close(self) -> None:
        self.reading.set()
        super().close()


def all_dead(pids: list[int], deadline_s: float = 5.0) -> bool:
    """Whether all of ``pids`` are gone, or go within the deadline."""
    deadline = time.monotonic() + deadline_s
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
        finally:
            os.close(pidfd)
    return True


class Screen:
    """The other side of a terminal, read step by step."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.unread = terminal, ""

    def until(self, text: str) -> None:
        """Read on past the next ``text``, and no further."""
        while text not in self.unread:
            assert select.select([self.terminal], [], [], DEADLINE_S)[0], (text, self.unread)
            self.unread += os.read(self.terminal, 1000).decode(errors="replace")
        self.unread = self.unread.split(text, 1)[1]
