"""``baton status`` and ``baton chat`` against a stub of the coordinator's HTTP."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from tests.deploy.running import DEADLINE_S, ROOT

STATUS = {
    "ready": True,
    "problems": [],
    "draining": False,
    "queued": 3,
    "running": 2,
    "redis_connected": True,
    "workers": [
        {
            "instance": "p-1", "role": "prefill", "device": "cpu", "running": 1, "waiting": 0,
            "free_pages": 10, "num_pages": 64, "free_state_slots": 7, "num_state_slots": 8,
            "prompt_tokens_per_s": 1536.4, "output_tokens_per_s": 2.0, "breaker": "closed",
        }
    ],
}  # fmt: skip


class Stub(ThreadingHTTPServer):
    """Answers GETs from ``pages`` and streams ``pieces`` of an answer; records the bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, object] = {"/v1/models": {"data": [{"id": "tiny"}]}}
        self.pieces: list[str] = ["4", "2"]
        self.refusal: tuple[int, str] | None = None
        self.hangs = False
        self.key = ""
        self.client_left = Event()
        self.bodies: list[dict] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.reply(401, b'{"error": {"message": "the API key is not one of ours"}}')
            return
        if self.server.refusal is not None:
            code, message = self.server.refusal
            self.reply(code, json.dumps({"error": {"message": message}}).encode())
            return
        found = self.server.pages.get(self.path)
        self.reply(404 if found is None else 200, json.dumps(found).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.refusal is not None:
            code, message = self.server.refusal
            self.reply(code, json.dumps({"error": {"message": message}}).encode())
            return
        events = [{"choices": [{"delta": {"role": "assistant"}}]}]
        events += [{"choices": [{"delta": {"content": piece}}]} for piece in self.server.pieces]
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if self.server.hangs and len(self.server.bodies) == 1:
            assert self.rfile.read(1) == b""  # until the client is gone
            self.server.client_left.set()
            return
        self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def baton(*args: str, stdin: str = "", key: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *args],
        input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False,
        env={**os.environ, "BATON_API_KEY": key},
    )  # fmt: skip


def test_help_names_every_setting():
    assert {"up", "status", "chat"} <= set(baton("--help").stdout.split())
    told = baton("up", "--help").stdout
    for name in (
        "model", "load-format", "device", "prefill", "decode", "role", "host", "port",
        "redis-url", "served-model-name", "drain-timeout",
    ):  # fmt: skip
        assert f"--{name}" in told
        assert f"BATON_{name.upper().replace('-', '_')}" in told


def test_status_of_a_ready_service(stub):
    stub.pages["/status"] = STATUS
    told = baton("status", "--url", stub.url)
    assert told.returncode == 0
    assert told.stdout.splitlines() == [
        "ready (3 queued, 2 running, Redis connected)",
        "role=prefill  instance=p-1  device=cpu  running=1  waiting=0  pages=54/64  "
        "state_slots=1/8  breaker=closed",
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
    assert told.returncode == 1
    assert told.stdout.startswith(f"not ready: {said} (")


def test_status_names_the_problems_of_a_service_that_is_ready_all_the_same(stub):
    stub.pages["/status"] = {**STATUS, "problems": ["no live prefill worker"]}
    told = baton("status", "--url", stub.url)
    assert told.returncode == 0
    assert told.stdout.startswith("ready: no live prefill worker (")


def test_status_exits_2_when_nothing_or_something_else_answers(stub):
    stub.pages["/status"] = {"ok": True}
    told = baton("status", "--url", stub.url)
    assert (told.returncode, told.stderr) == (
        2,
        f"error: what answers at {stub.url} is not Baton\n",
    )
    stub.refusal = (429, "try again in 3 s")
    told = baton("status", "--url", stub.url)
    assert (told.returncode, told.stderr) == (
        2,
        f"error: {stub.url} answers HTTP 429: try again in 3 s\n",
    )
    told = baton("status", "--url", "http://127.0.0.1:1")
    assert told.returncode == 2
    assert told.stderr.startswith("error: no answer from http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    "command", [["status"], ["chat", "hi"], ["top", "--once"], ["bench", "throughput"]]
)
def test_who_finds_nobody_is_told_of_the_url_and_shown_no_password(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, [*command, "--url", "http://127.0.0.1:1"])
    assert told.exit_code != 0
    assert "--url or BATON_URL" in told.stderr
    told = CliRunner().invoke(app, [*command, "--url", "http://u:s3cret@127.0.0.1:1"])
    assert told.exit_code != 0
    assert "s3cret" not in told.output


def test_chat_answers_once_when_given_a_message(stub):
    told = baton("chat", "6 times 7?", "--url", stub.url, "--system", "Count.", "--max-tokens", "9")
    assert (told.returncode, told.stdout, told.stderr) == (0, "42\n", "")
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


def test_chat_tells_the_servers_refusal_plainly(stub):
    stub.refusal = (503, "queue full")
    told = baton("chat", "hi", "--url", stub.url)
    assert (told.returncode, told.stderr) == (
        1,
        f"error: {stub.url} answers HTTP 503: queue full\n",
    )


def test_a_key_comes_from_the_environment(stub):
    stub.pages["/status"], stub.key = STATUS, "sk-right"
    assert baton("status", "--url", stub.url, key="sk-right").returncode == 0
    told = baton("status", "--url", stub.url, key="sk-wrong")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        f"error: {stub.url} does not know the key in BATON_API_KEY; "
        "set BATON_API_KEY to one of the service's API keys\n"
    )
    told = baton("status", "--url", stub.url)
    assert (told.returncode, told.stdout) == (2, "")
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


class Screen:
    """The other side of a terminal, read step by step."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.unread = terminal, ""

    def until(self, text: str) -> None:
        """Read on past the next ``text``, and no further."""
        while text not in self.unread:
            assert select.select([self.terminal], [], [], DEADLINE_S)[0], (text, self.unread)
            self.unread += os.read(self.terminal, 1000).decode(errors="replace")
        self.unread = self.unread.split(text, 1)[1]
