"""``baton up`` that restarts a service within half a second, however often it has died: tests kill
the same service several times in a minute, and each would wait twice as long as the one before.
Its services are forks of it if it is one itself (forks.py)."""

import sys

from deploy import supervisor
from deploy.cli import app
from deploy.managed_process import RestartPolicy
from tests.e2e import forks


def quick(num_at_once: int = 0, max_s: float = 0.5) -> RestartPolicy:
    """A policy as the supervisor asks for it, with delays of at most 0.5 s."""
    return RestartPolicy(num_at_once=num_at_once, max_s=min(max_s, 0.5))


if __name__ == "__main__":
    supervisor.RestartPolicy = quick
    if "torch" in sys.modules:
        forks.fork_services()
    app()
