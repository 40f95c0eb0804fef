"""A ``baton up`` whose workers may be killed: its output in a file, its processes by name."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
STOP_S = 90.0
_READY = re.compile(r"^ready: (http://\S+)")


class SoakStack:
    """A stack that serves at ``url``."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.url = url
        self._process = process

    def pids(self) -> dict[str, int]:
        """Process ids by service name (coordinator, prefill-1, …) of those alive now."""
        found = {}
        for children in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for pid in map(int, children.read_text().split()):
                if name := _setting(pid, "BATON_SERVICE_NAME"):
                    found[name] = pid
        return found

    def kill(self, name: str) -> None:
        """kill -9."""
        os.kill(self.pids()[name], signal.SIGKILL)

    def stop(self) -> int | None:
        """Drain; its exit code, None when it has not ended within ``STOP_S``."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return None


@contextlib.contextmanager
def started(
    arguments: Sequence[str], settings: Mapping[str, str], log: Path, start_s: float
) -> Iterator[SoakStack]:
    """``baton up`` with ``arguments``, and ``settings`` as BATON_* variables; all it prints goes to
    ``log``. Raises SystemExit with its last words when it is not ready within ``start_s``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    ours = {f"BATON_{name.upper()}": value for name, value in settings.items()}
    path = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli", "up", "--port", "0", *arguments],
        env={**clean, **ours, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with log.open("w") as file, process:
        late = threading.Timer(start_s, process.kill)
        late.start()
        try:
            url = _until_ready(process, file)
            late.cancel()
            threading.Thread(target=_copy, args=(process, file), daemon=True).start()
            yield SoakStack(process, url)
        finally:
            late.cancel()
            process.kill()


def _until_ready(process: "subprocess.Popen[str]", file: IO[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        file.write(line)
        lines.append(line)
        if found := _READY.match(line):
            return found[1]
    raise SystemExit(f"the stack did not start:\n{''.join(lines[-20:])}")


def _copy(process: "subprocess.Popen[str]", file: IO[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # the file or the pipe was closed: it is over
        for line in process.stdout:
            file.write(line)
            file.flush()


def _setting(pid: int, name: str) -> str:
    try:
        listing = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return dict(line.partition("=")[::2] for line in listing.split("\0")).get(name, "")
