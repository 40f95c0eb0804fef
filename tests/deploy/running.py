"""``baton up`` with stub services (stubs/stub.py), watched without sleeping."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUBS = Path(__file__).resolve().parent / "stubs"
DEADLINE_S = 15.0


class Up:
    """One ``baton up`` whose services are stubs; stdout and stderr arrive in ``text``."""

    def __init__(self, folder: Path, *args: str, **environ: str) -> None:
        self.base, self.journal, self.text = folder / "run", folder / "journal", ""
        self.base.mkdir()
        self.journal.touch()
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("BATON_", "STUB_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "up", "--device", "cpu", "--port", "0",
             "--model", str(folder / "model"), *args],
            env={**clean, "PYTHONPATH": f"{STUBS}{os.pathsep}{ROOT}", "STUB_JOURNAL":
                 str(self.journal), "XDG_RUNTIME_DIR": str(self.base),
                 "BATON_REDIS_URL": "redis://unused", **environ},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.pidfd = os.pidfd_open(self.process.pid)

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until ``pattern`` has been printed."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while (found := re.search(pattern, self.text, re.MULTILINE)) is None:
            left_s = max(deadline - time.monotonic(), 0)
            ready = select.select([self.process.stdout], [], [], left_s)[0]
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert chunk, f"{pattern!r} was not printed, but:\n{self.text}"
            self.text += chunk.decode()
        return found

    def until_ready(self) -> None:
        self.until(r"^ready: .*\n")

    def exit_code(self) -> int:
        """Wait for the end; ``text`` is complete then."""
        self.text += self.process.communicate(timeout=DEADLINE_S)[0].decode()
        return self.process.returncode

    def ends(self) -> bool:
        """Whether it ends in time, with nobody reading what it prints."""
        return bool(select.select([self.pidfd], [], [], DEADLINE_S)[0])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pids(self, name: str = "") -> list[int]:
        """Processes that services called ``name…`` have reported, in order."""
        pairs = (line.split() for line in self.journal.read_text().splitlines())
        return [int(pid) for who, pid in pairs if pid != "stopped" and who.startswith(name)]

    def stops(self) -> list[str]:
        pairs = (line.split() for line in self.journal.read_text().splitlines())
        return [who for who, what in pairs if what == "stopped"]

    def leftovers(self) -> list[Path]:
        return list(self.base.iterdir())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self.pidfd)


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
