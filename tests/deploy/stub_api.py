"""A stub of the coordinator's HTTP API, for the commands that are its clients."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

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
            "drafts": 0, "tokens_per_step": None, "draft_acceptance": [], "given_acceptance": None,
            "queried_tokens": 0, "reused_tokens": 0, "kept_prefixes": 0, "kept_prefixes_host": 0,
            "spread": None,
        }
    ],
}  # fmt: skip

LOAD = {"period_s": 10, "started_at": 1.7e9, "points": []}


class StubApi(ThreadingHTTPServer):
    """Answers GETs from ``pages`` (JSON, or a function that gives the bytes) and streams ``pieces``
    of an answer. ``refusal`` (status and message) answers everything, ``refusals`` a path. Records
    the ``bodies`` and the ``keys`` that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, object] = {"/v1/models": {"data": [{"id": "tiny"}]}}
        self.pieces: list[str] = ["4", "2"]
        self.refusal: tuple[int, str] | None = None
        self.refusals: dict[str, tuple[int, str]] = {}
        self.hangs = False
        self.key = ""
        self.client_left = Event()
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: StubApi

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        page = self.server.pages.get(self.path)
        if self.refused():
            return
        body = page() if isinstance(page, Callable) else json.dumps(page).encode()
        self.reply(404 if page is None else 200, body)

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.refused():
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

    def refused(self) -> bool:
        refusal = self.server.refusals.get(self.path, self.server.refusal)
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            refusal = 401, "the API key is not known"
        if refusal is not None:
            code, message = refusal
            self.reply(code, json.dumps({"error": {"message": message}}).encode())
        return refusal is not None

    def reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def stub_api() -> Iterator[StubApi]:
    with StubApi() as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.shutdown()
        serving.join()
