"""Services that must refuse to start, and what they say.

They are forked from a process that has imported torch: that takes longer than to refuse. They run
as ``python -m`` runs them, with arguments and an environment of their own.
"""

import sys

from telemetry.last_words import fatal_reason
from tests.e2e import forks
from tests.e2e.stack import Stack, environment

EXIT_S = 30.0


def refusal(module: str, *args: str, **settings: object) -> str:
    """Run a service that must refuse to start; its last line."""
    done = forks.completed([sys.executable, "-m", module, *args], environment(**settings), EXIT_S)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "Traceback" not in output
    lines = output.strip().splitlines()
    reason = fatal_reason(lines[-1])
    assert reason, lines
    return f"error: {reason}"


def up(*args: str, **settings: object) -> str:
    """The same of a whole stack, of one worker: a second one would be started for nothing."""
    alone = ("up", "--port", "0", "--role", "colocated")
    return refusal("tests.e2e.quick_up", *alone, *args, **settings)


def reach(baton: Stack) -> dict[str, str]:
    """Settings by which a worker finds and joins a stack's coordinator."""
    return {"coordinator": baton.endpoint, "channel_secret": baton.channel_secret}
