"""Services that must refuse to start, and what they say.

Workers are forked from a process that has imported torch: that takes longer than to refuse. They
run as ``python -m`` runs them, with arguments and an environment of their own.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.stack import ROOT
from telemetry.last_words import fatal_reason
from tests.e2e.stack import Stack, environment

EXIT_S = 30.0
WORKERS = ("prefill", "decode", "colocated")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker.main"])


def refusal(module: str, *args: str, **settings: object) -> str:
    """Run a service that must refuse to start; its last line."""
    run = forked if module in WORKERS else started
    status, output = run(module, args, environment(**settings))
    assert status == 2, output
    assert "Traceback" not in output
    lines = output.strip().splitlines()
    reason = fatal_reason(lines[-1])
    assert reason, lines
    return f"error: {reason}"


def started(module: str, args: tuple[str, ...], environ: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of ``python -m module``."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=EXIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def forked(module: str, args: tuple[str, ...], environ: dict[str, str]) -> tuple[int | None, str]:
    """The same of a fork; the status is None if it runs for longer than ``EXIT_S``."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = FORKS.Process(target=_run, args=(module, args, environ, output))
        process.start()
        try:
            process.join(EXIT_S)
            return process.exitcode, output.read_text() if output.exists() else ""
        finally:
            process.kill()
            process.join()


def _run(module: str, args: tuple[str, ...], environ: dict[str, str], output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(ROOT)
    sys.argv[1:] = args
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def up(*args: str, **settings: object) -> str:
    """The same of a whole stack, of one worker: a second one would be started for nothing."""
    return refusal("deploy.cli", "up", "--port", "0", "--role", "colocated", *args, **settings)


def reach(baton: Stack) -> dict[str, str]:
    """Settings by which a worker finds and joins a stack's coordinator."""
    return {"coordinator": baton.endpoint, "channel_secret": baton.channel_secret}
