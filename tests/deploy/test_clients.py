"""``baton status`` and ``baton chat`` against a stub of the coordinator's HTTP."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from deploy.cli import app
from telemetry.version import VERSION
from tests.deploy.running import DEADLINE_S, ROOT, Screen
from tests.deploy.stub_api import STATUS, StubApi, stub_api


@pytest.fixture
def stub() -> Iterator[StubApi]:
    with stub_api() as server:
        yield server


def baton(*args: str, stdin: str = "", key: str = "") -> Result:
    return CliRunner().invoke(app, args, input=stdin, env={"BATON_API_KEY": key})


def test_help_names_every_setting():
    assert {"up", "status", "chat"} <= set(baton("--help").stdout.split())
    told = baton("up", "--help").stdout
    for name in (
        "model", "load-format", "device", "prefill", "decode", "role", "host", "port",
        "redis-url", "served-model-name", "drain-timeout", "prefix-cache", "spread",
    ):  # fmt: skip
        assert f"--{name}" in told
        assert f"BATON_{name.upper().replace('-', '_')}" in told


def test_the_version_and_completion():
    told = baton("--version")
    assert (told.exit_code, told.stdout) == (0, f"baton {VERSION}\n")
    told = CliRunner().invoke(
        app,
        [],
        env={"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": "baton st", "COMP_CWORD": "1"},
    )
    assert told.stdout.split() == ["status"]


def test_a_url_may_end_with_v1(stub):
    stub.pages["/status"] = STATUS
    for url in (f"{stub.url}/v1", f"{stub.url}/v1/"):
        assert baton("status", "--url", url).exit_code == 0


def test_status_of_a_ready_service(stub):
    stub.pages["/status"] = STATUS
    told = baton("status", "--url", stub.url)
    assert told.exit_code == 0
    assert told.stdout.splitlines() == [
        "ready (3 queued, 2 running, Redis connected)",
        "role=prefill  instance=p-1  device=cpu  running=1  waiting=0  pages=54/64  "
        "state_slots=1/8  hits=-  kept=0  drafts=0  tok_step=-  accepted=-  spread=-  step_ms=-  "
        "times_from=-  waits_for=-  breaker=closed",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ready": False, "problems": ["no decode worker"]}, "no decode worker"),
        ({"draining": True}, "draining"),
    ],
)
def test_status_of_an_unready_service_exits_1(stub, change, said):
    stub.pages["/status"] = {**STATUS, **change}
    told = baton("status", "--url", stub.url)
    assert told.exit_code == 1
    assert told.stdout.startswith(f"not ready: {said} (")


def test_status_names_the_problems_of_a_service_that_is_ready(stub):
    stub.pages["/status"] = {**STATUS, "problems": ["no live prefill worker"]}
    told = baton("status", "--url", stub.url)
    assert told.exit_code == 0
    assert told.stdout.startswith("ready: no live prefill worker (")


def test_status_exits_2_when_nothing_or_something_else_answers(stub):
    stub.pages["/status"] = {"ok": True}
    told = baton("status", "--url", stub.url)
    assert (told.exit_code, told.stderr) == (
        2,
        f"error: what answers at {stub.url} is not Baton\n",
    )
    stub.refusal = (429, "try again in 3 s")
    told = baton("status", "--url", stub.url)
    assert (told.exit_code, told.stderr) == (
        2,
        f"error: {stub.url} answers HTTP 429: try again in 3 s\n",
    )
    told = baton("status", "--url", "http://127.0.0.1:1")
    assert told.exit_code == 2
    assert told.stderr.startswith("error: no answer from http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    "command", [["status"], ["chat", "hi"], ["top", "--once"], ["bench", "throughput"]]
)
def test_a_command_without_an_answer_names_the_url_setting(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, [*command, "--url", "http://127.0.0.1:1"])
    assert told.exit_code != 0
    assert "--url or BATON_URL" in told.stderr
    told = CliRunner().invoke(app, [*command, "--url", "http://u:s3cret@127.0.0.1:1"])
    assert told.exit_code != 0
    assert "s3cret" not in told.output


def test_chat_answers_once_when_given_a_message(stub):
    told = baton("chat", "6 times 7?", "--url", stub.url, "--system", "Count.", "--max-tokens", "9")
    assert (told.exit_code, told.stdout, told.stderr) == (0, "42\n", "")
    assert stub.bodies == [
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Count."},
                {"role": "user", "content": "6 times 7?"},
            ],
            "stream": True,
            "max_tokens": 9,
        }
    ]


def test_chat_reads_a_message_from_elsewhere(stub):
    assert baton("chat", "--url", stub.url, stdin="6 times\n7?\n").stdout == "42\n"
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "6 times\n7?"}]


def test_chat_prints_the_error_of_the_server(stub):
    stub.refusal = (503, "queue full")
    told = baton("chat", "hi", "--url", stub.url)
    assert (told.exit_code, told.stderr) == (
        1,
        f"error: {stub.url} answers HTTP 503: queue full\n",
    )


def test_a_key_comes_from_the_environment(stub):
    stub.pages["/status"], stub.key = STATUS, "sk-right"
    assert baton("status", "--url", stub.url, key="sk-right").exit_code == 0
    told = baton("status", "--url", stub.url, key="sk-wrong")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"error: {stub.url} does not know the key in BATON_API_KEY; "
        "set BATON_API_KEY to one of the service's API keys\n"
    )
    told = baton("status", "--url", stub.url)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"error: {stub.url} wants a key; set BATON_API_KEY to one of the service's API keys\n"
    )
    assert baton("chat", "hi", "--url", stub.url, key="sk-right").stdout == "42\n"
    told = baton("chat", "hi", "--url", stub.url)
    assert "wants a key; set BATON_API_KEY" in told.stderr
    told = baton("status", "--url", stub.url, key="sk-\nwrong")
    assert "sk-" not in told.stdout + told.stderr
    assert "no header can carry" in told.stdout + told.stderr


def test_conversation_survives_ctrl_c_and_remembers(stub):
    stub.hangs = True
    here, there = pty.openpty()
    screen = Screen(here)
    talk = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli", "chat", "--url", stub.url],
        stdin=there, stdout=there, stderr=there, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    os.close(there)
    try:
        screen.until("> ")
        os.write(here, b"first?\n")
        screen.until("42")
        talk.send_signal(signal.SIGINT)
        assert stub.client_left.wait(DEADLINE_S), "the request was not cancelled"
        screen.until("> ")
        os.write(here, b"second?\n")
        screen.until("42")
        screen.until("> ")
        os.write(here, b"\x04")
        assert talk.wait(DEADLINE_S) == 0
    finally:
        talk.kill()
        os.close(here)
    assert [message["content"] for message in stub.bodies[1]["messages"]] == [
        "first?", "42", "second?",
    ]  # fmt: skip
