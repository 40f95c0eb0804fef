"""A listening socket that the starter keeps."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from telemetry.listen_fds import inherited_listener

ROOT = Path(__file__).resolve().parents[2]
TAKE = """
import os
from telemetry.listen_fds import inherited_listener
try:
    listener = inherited_listener(os.environ, os.getpid())
    print(listener.getsockname()[1] if listener else None, os.get_inheritable(3))
except ValueError as error:
    print(error)
"""


def taken(passed: socket.socket, **environ: str) -> str:
    """What a process says of the socket that die_with_parent.py has passed on to it."""
    starter = [sys.executable, "-I", "-S", str(ROOT / "deploy/die_with_parent.py"), "KILL"]
    done = subprocess.run(
        [*starter, str(os.getpid()), f"--listen={passed.fileno()}", "env",
         *(f"{name}={value}" for name, value in environ.items()), sys.executable, "-c", TAKE],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        pass_fds=[passed.fileno()], capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_the_listener_is_taken_and_not_passed_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert taken(listener) == f"{listener.getsockname()[1]} False"


def test_one_that_is_none_is_named() -> None:
    with socket.socket() as idle:
        assert taken(idle) == "LISTEN_FDS: descriptor 3 is not a listening TCP socket"


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
                {"LISTEN_FDS": "0", "LISTEN_PID": "7"}]
)  # fmt: skip
def test_what_is_for_another_process_is_left_alone(environ: dict[str, str]) -> None:
    assert inherited_listener(environ, 7) is None


def test_more_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LISTEN_FDS: '2' is not 1"):
        inherited_listener({"LISTEN_FDS": "2", "LISTEN_PID": "7"}, 7)
