"""``baton up --detach``, ``baton logs`` and ``baton down``, with stub services."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from deploy.ports import claim_port
from tests.deploy.running import DEADLINE_S, all_dead, stub_environment, stub_options


class Commands:
    """The ``baton`` command with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._up = ("up", "--detach", *stub_options(folder))
        self.journal = folder / "journal"
        self.port = str(claim_port("127.0.0.1", 0))

    def run(self, *args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self._command(args, environ), env=self._environment(environ),
            capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False,
        )  # fmt: skip

    def up(self, **environ: str) -> "subprocess.CompletedProcess[str]":
        return self.run(*self._up, **environ)

    def begin_up(self, **environ: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command(self._up, environ), env=self._environment(environ))

    def _command(self, args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        port = environ.get("PORT", self.port)
        return [sys.executable, "-m", "deploy.cli", *args, "--port", port]

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        state = str(self._folder / "state")
        return stub_environment(self._folder, {"XDG_STATE_HOME": state, **environ})

    def until_begun(self, number: int) -> None:
        """Wait until so many services have begun."""
        follow = ["timeout", str(DEADLINE_S), "tail", "-n", "+1", "-f", str(self.journal)]
        with subprocess.Popen(follow, stdout=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            lines = [tail.stdout.readline() for _ in range(number)]
            tail.terminate()
        assert all(lines), "not in time"

    def pids(self) -> list[int]:
        """Processes of services that have begun."""
        pairs = [line.split() for line in self.journal.read_text().splitlines()]
        return [int(pid) for who, pid in pairs if pid != "stopped"]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.run("down")


def test_a_detached_server_runs_until_it_is_told_to_end(commands: Commands) -> None:
    up = commands.up()
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines()[-1].startswith(f"ready: http://127.0.0.1:{commands.port} (")
    assert commands.pids()
    assert not all_dead(commands.pids(), 0.0)
    again = commands.up()
    assert again.returncode == 2
    assert again.stderr.startswith("error: --port: a detached server")
    assert again.stderr.rstrip().endswith(f"`baton down --port {commands.port}` ends it")
    for command in ("down", "logs"):
        elsewhere = commands.run(command, PORT="1")
        assert elsewhere.returncode == 1
        assert elsewhere.stderr.rstrip().endswith(f"; running: --port {commands.port}")
    logs = commands.run("logs")
    assert "ready: http://" in logs.stdout
    down = commands.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert all_dead(commands.pids())
    assert "SIGTERM: draining" in commands.run("logs", "-n", "1000").stdout
    assert commands.run("down").returncode == 1
    assert commands.up().returncode == 0, "its port is free again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_no_server(
    commands: Commands, number: signal.Signals
) -> None:
    up = commands.begin_up(STUB_DECODE="progress")
    try:
        commands.until_begun(3)
        up.send_signal(number)
        assert up.wait(DEADLINE_S) == 1
    finally:
        up.kill()
        up.wait(DEADLINE_S)
    assert all_dead(commands.pids())
    assert commands.run("down").returncode == 1, "none runs"


def test_a_start_that_fails_says_why(commands: Commands) -> None:
    up = commands.up(BATON_SPREAD="nonsense")
    assert up.returncode == 2
    assert up.stderr.splitlines()[-1].startswith("error: --spread")
    assert commands.run("down").returncode == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8123/v1", "server of port 8123 "),
        ("http://127.0.0.1:x", "BATON_URL: 'http://127.0.0.1:x'"),
        ("https://host", "--port: BATON_URL is 'https://host', which has no port"),
    ],
)
def test_the_port_is_that_of_the_url_if_none_is_given(
    url: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("BATON_URL", url)
    monkeypatch.delenv("BATON_PORT", raising=False)
    for command in ("logs", "down"):
        found = CliRunner().invoke(app, [command])
        assert found.exit_code == 1
        assert said in found.stderr


def test_logs_of_nothing(commands: Commands) -> None:
    logs = commands.run("logs")
    assert logs.returncode == 1
    assert logs.stderr.startswith("error: --port: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [("BATON_MAX_OPEN", "0"), ("BATON_MAX_OPEN", "many"), ("BATON_LOG_LEVEL", "loud")],
)
def test_settings_of_services_are_checked_before_any_starts(
    commands: Commands, name: str, value: str
) -> None:
    up = commands.up(**{name: value})
    assert up.returncode == 2
    assert up.stderr.splitlines()[-1].startswith(f"error: {name}: {value!r}")
    assert commands.pids() == []
