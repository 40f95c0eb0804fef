"""Cleans up at once after a ``baton up`` that was killed: ``python -m deploy.guardian RUN_DIR``.

The guardian waits for the lock of the run folder, which the kernel releases when ``baton up``
dies. It then kills the processes that are left, and removes the folder and the shared memory of
dead owners: gigabytes, on a machine without GPUs. If the guardian was killed too, the services
still end (die_with_parent.py), and the next ``baton up`` removes the rest.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.rundir import remove_when_free
from transport.copy import shm

_CODE = Path(__file__).resolve().parent.parent


class Guardian:
    """The guardian's process, in a session of its own: what a terminal sends does not reach it."""

    def __init__(self, run_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.guardian", str(run_dir)],
            env={**_without_settings(os.environ), "PYTHONPATH": str(_CODE), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out Baton's settings, among them API keys, passwords and the channel secret: the
    guardian needs none of them."""
    return {name: value for name, value in environ.items() if not name.startswith("BATON_")}


def main(run_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    remove_when_free(run_dir)
    shm.sweep()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
