"""A malformed secret is refused, and no part of it is in stdout, stderr or a log."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import coordinator.__main__
import prefill.__main__
import worker.main
from bench.harness.client.endpoint import endpoint
from coordinator.record.redis_link import RedisLink
from deploy.cli import app

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
SECRET = "q7Zt0s3cr3tVb9xKm2LpW4"
PIECES = [SECRET[i : i + 6] for i in range(len(SECRET) - 5)]
ENOUGH = "0123456789abcdef" * 2

API_KEYS = [
    SECRET, f"{SECRET} ", f"{SECRET}:alice", f":{SECRET}", f"alice:{SECRET}:many",
    f"alice {SECRET}", f"alice={SECRET}", f"alice:{SECRET}:1:2:3:4:5", f"alice:{SECRET}::x",
    f"alice:{SECRET}\nalice:{SECRET}", f"alice:{SECRET},bob:{SECRET}", f"alice:{SECRET}é",
    f"alice:{SECRET}:1,bob {SECRET}", SECRET * 4, f"Bearer {SECRET}", f'"alice:{SECRET}',
    f"alice:{SECRET}\udcff",
]  # fmt: skip
CHANNEL_SECRETS = [SECRET, f'"{SECRET}"', f"{ENOUGH}{SECRET}\udcff"]
REDIS_URLS = [
    SECRET, f"redis:{SECRET}", f":{SECRET}@redis:6379", f"http://:{SECRET}@redis:6379/0",
    f"redis://:{SECRET}", f"redis://redis:{SECRET}", f"redis://:{SECRET}/@redis:6379/0",
    f"redis://:{SECRET}#x@redis:6379/0", f"redis://:{SECRET}?x@redis:6379/0",
    f"redis://:[{SECRET}@redis:6379/0", f"redis://:{SECRET}@redis:port/0",
    f"redis://:{SECRET}@redis:6379/{SECRET}", f"redis://:{SECRET}\u2100@redis:6379/0",
    f"unix://{SECRET}?password={SECRET}", f"redis://redis/{SECRET}",
]  # fmt: skip
CLIENT_KEYS = [f"{SECRET}\u00e9", f"{SECRET}\x07", f"{SECRET}\n{SECRET}"]


@pytest.fixture(autouse=True)
def logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """Every record at every level, and no service that starts although it was to be refused."""
    caplog.set_level(logging.DEBUG)
    for module in (coordinator.__main__, worker.main):
        monkeypatch.setattr(module, "configure_logging", lambda *_: None)
    monkeypatch.setattr(coordinator.__main__, "serve", refused_too_late)
    monkeypatch.setattr(worker.main, "serve", refused_too_late)
    yield caplog
    assert not shown(caplog.text)


def refused_too_late(*_: object) -> None:
    raise AssertionError("the setting was taken")


def shown(text: str) -> list[str]:
    return [piece for piece in PIECES if piece in text]


def run(
    command: typer.Typer, arguments: list[str], logs: pytest.LogCaptureFixture, **environ: str
) -> str:
    """All that it says: it must fail, and show no part of the secret."""
    asked = {"BATON_REDIS_URL": None, "BATON_API_KEY": None, **environ}
    done = CliRunner().invoke(command, arguments, env=asked)
    said = f"{done.output}{done.stderr}{logs.text}"
    logs.clear()
    assert done.exit_code != 0, environ
    assert not isinstance(done.exception, AssertionError), environ
    assert not shown(said), (environ, said)
    return said


def of(module) -> typer.Typer:
    command = typer.Typer()
    command.command()(module.main)
    return command


COORDINATOR = of(coordinator.__main__)
WORKER = of(prefill.__main__)
GOOD = {"BATON_MODEL": str(TINY), "BATON_DEVICE": "cpu", "BATON_COORDINATOR": "tcp://127.0.0.1:1"}


def given(text: str, name: str, folder: Path) -> list[dict[str, str]]:
    """As the setting itself, as its file's content, and by mistake as the file's name."""
    path = folder / "secret"
    path.write_bytes(text.encode(errors="surrogateescape"))
    ways = [{name: text}, {f"{name}_FILE": str(path)}, {name: text, f"{name}_FILE": str(path)}]
    return [*ways, {f"{name}_FILE": text}, {f"{name}_FILE": f"{text}/{SECRET}"}]


@pytest.mark.parametrize("text", API_KEYS, ids=repr)
def test_clients_keys(text: str, logs: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for environ in given(text, "BATON_API_KEYS", tmp_path):
        good = GOOD | {"BATON_REDIS_URL": "redis://redis"}
        assert "BATON_API_KEYS" in run(COORDINATOR, [], logs, **good, **environ)


@pytest.mark.parametrize("text", CHANNEL_SECRETS, ids=repr)
def test_the_channels_secret(text: str, logs: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for environ in given(text, "BATON_CHANNEL_SECRET", tmp_path):
        for command, more in ((COORDINATOR, {"BATON_REDIS_URL": "redis://redis"}), (WORKER, {})):
            said = run(command, [], logs, **GOOD, **more, **environ)
            assert "BATON_CHANNEL_SECRET" in said


@pytest.mark.parametrize("url", REDIS_URLS)
def test_the_url_of_redis(
    url: str, logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.__main__, "serve", connect)
    run(COORDINATOR, [], logs, **GOOD, BATON_REDIS_URL=url)
    assert "--redis-url" in run(app, ["up"], logs, **GOOD, BATON_REDIS_URL=url)
    monkeypatch.setattr("deploy.doctor.pairs", lambda devices, environ: [])
    assert "fail  redis" in run(app, ["doctor"], logs, **GOOD, BATON_REDIS_URL=url)


def connect(settings) -> None:
    RedisLink(settings.redis_url, call_timeout_s=1.0)
    refused_too_late()


@pytest.mark.parametrize("key", CLIENT_KEYS, ids=repr)
def test_a_clients_own_key(key: str, logs: pytest.LogCaptureFixture) -> None:
    url = ["--url", "http://127.0.0.1:1"]
    for command in (["status"], ["top", "--once"], ["chat", "hello"]):
        run(app, [*command, *url], logs, BATON_API_KEY=key)
    run(app, ["bench", "conformance", *url], logs, BATON_API_KEY=key)


@pytest.mark.parametrize(
    "url",
    [f"ftp://u:{SECRET}@host", f"http://u:{SECRET}@host:port", f"http://u:{SECRET}\u2100@host",
     f"http://[u:{SECRET}@host", f"http://{SECRET}@host/v1"],
)  # fmt: skip
def test_a_servers_url_with_a_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"^url: ") as refused:
        endpoint(url)
    assert not shown(str(refused.value))
