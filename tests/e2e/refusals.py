"""Services that must refuse to start, and what they say."""

import subprocess
import sys

from bench.stack import ROOT
from telemetry.last_words import fatal_reason
from tests.e2e.stack import Stack, environment

EXIT_S = 30.0


def refusal(module: str, *args: str, **settings: object) -> str:
    """Run a service that must refuse to start; its last line."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        env=environment(**settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=EXIT_S,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert "Traceback" not in done.stdout + done.stderr
    reason = fatal_reason(lines[-1])
    assert reason, lines
    return f"error: {reason}"


def up(*args: str, **settings: object) -> str:
    """The same of a whole stack, of one worker: a second one would be started for nothing."""
    return refusal("deploy.cli", "up", "--port", "0", "--role", "colocated", *args, **settings)


def reach(baton: Stack) -> dict[str, str]:
    """Settings by which a worker finds and joins a stack's coordinator."""
    return {"coordinator": baton.endpoint, "channel_secret": baton.channel_secret}
