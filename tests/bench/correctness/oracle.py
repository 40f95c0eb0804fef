"""A server that knows the answers, and gives wrong ones where it is told to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[dict[str, Any]], str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    say: Say
    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "oracle", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        try:
            text = self.say(body)
        except ConnectionAbortedError:
            self.close_connection = True
            return
        except RuntimeError as error:
            self._answer(500, {"error": {"message": str(error)}})
            return
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self._answer(200, {"id": "x", "choices": [choice], "usage": usage})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def oracle(say: Say) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(url, bodies asked) of a server that answers a chat with ``say(body)``. A RuntimeError of
    ``say`` is a 500, a ConnectionAbortedError a connection that ends without an answer."""
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (_Handler,), {"say": staticmethod(say), "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
