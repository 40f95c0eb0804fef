"""``baton up`` as a child: its ready line, its end, and its environment."""

import os
import signal
import subprocess
import sys

import pytest

from deploy.die_with_parent import die_with_parent
from deploy.ray.stack import Stack, StackEnded, up_service
from deploy.services import Service

READY = "print('ready: http://127.0.0.1:1 (1 colocated, cpu, tiny)', flush=True)"


def started(code: str) -> Stack:
    return Stack(Service("baton up", (sys.executable, "-c", code), os.environ), print)


async def test_the_ready_line_has_the_url_and_sigterm_ends_it() -> None:
    stack = started(f"import time; print('loading', flush=True); {READY}; time.sleep(60)")
    await stack.start()
    assert stack.url == "http://127.0.0.1:1"
    assert stack.ended == ""
    await stack.stop(30)
    assert stack.ended == "killed by SIGTERM"


async def test_one_that_cannot_start_tells_its_last_lines() -> None:
    stack = started("import sys; print('error: --model: no such folder'); sys.exit(2)")
    with pytest.raises(StackEnded, match=r"ended: --model: no such folder\nerror: --model"):
        await stack.start()
    await stack.stop(30)


async def test_one_that_ignores_sigterm_is_killed_at_the_deadline() -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stack = started(f"import time; {ignore}; {READY}; time.sleep(60)")
    await stack.start()
    await stack.stop(0.01)
    assert stack.ended == "killed by SIGKILL"


def test_signals_that_the_parent_blocks_reach_it() -> None:
    """A Ray worker blocks SIGINT, the mask is inherited, and by SIGINT a coordinator drains."""
    show = "import signal; print(*signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        command = die_with_parent([sys.executable, "-c", show])
        blocked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked.stdout == "\n"


def test_settings_are_over_the_environment_and_the_address_is_over_both() -> None:
    environ = {"BATON_API_KEYS_FILE": "/keys", "BATON_MODEL": "a", "NOTIFY_SOCKET": "/run/ray"}
    settings = {"BATON_MODEL": "b"}
    env = up_service(environ, settings, host="10.0.0.7", port=8100, drain_s=10).env
    assert env["BATON_MODEL"] == "b"
    assert env["BATON_API_KEYS_FILE"] == "/keys"
    assert (env["BATON_HOST"], env["BATON_PORT"]) == ("10.0.0.7", "8100")
    assert env["BATON_DRAIN_TIMEOUT"] == "10"
    assert "NOTIFY_SOCKET" not in env
