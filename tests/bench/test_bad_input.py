"""What the benchmark of bad requests measures beside them, and what it calls a miss."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.bad_bodies import BAD
from bench.bad_input import Targets, problems
from bench.bad_input_beside import Streams, pinging
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from tests.bench.stub import Behaviour, Stub

NAME = next(iter(BAD))
GOOD = {"name": NAME, "status": 400, "took_s": 0.1, "param": BAD[NAME].param}


def phases(answer: dict[str, Any], ping_ms: float = 1.0) -> dict[str, Any]:
    return {"answers": [answer], "ping": {"max_ms": ping_ms}}


def test_what_misses_its_target_is_named_with_its_phase() -> None:
    results = {
        "single": phases(GOOD | {"took_s": 1.5}),
        "together": phases(GOOD | {"status": 200}, ping_ms=70.0),
        "distinct": phases(GOOD | {"status": 503, "took_s": 9.0}),
        "streams": {"ended": 5, "failed": 1},
    }
    assert problems(results, Targets()) == [
        f"single: {NAME}: 1.50 s",
        f"together: {NAME}: status 200",
        "together: an answer to /ping took 70 ms",
        "1 streams failed",
    ]
    results["single"] = phases(GOOD | {"param": "another"})
    assert problems(results, Targets())[0] == f"single: {NAME}: blames 'another'"


async def test_streams_go_on_until_they_are_told_to_end() -> None:
    last = asyncio.Event()
    two_tokens = Behaviour(0.05, 0.5, answer_len=2, fault="drop", fault_every=2, fault_after=1)
    async with Stub(two_tokens) as stub, Client(endpoint(stub.url)) as client:  # the 2nd breaks off
        stub.on_request = lambda number: last.set() if number == 3 else None
        streams = Streams(client, 1)
        await last.wait()
        gaps = await streams.end()
    assert (streams.num_ended, streams.num_failed) == (3, 1)
    assert len(gaps) == 5
    assert all(begin <= end for begin, end in gaps)


@contextmanager
def server(*, answers: bool) -> Iterator[tuple[str, threading.Event]]:
    """Its URL, and whether it was asked twice; or once where it ends the connection instead."""
    asked, twice = itertools.count(1), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if next(asked) > answers:
                twice.set()
            if answers:
                self.send_response(204)
                self.end_headers()
            self.close_connection = not answers

        def log_message(self, format: str, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client resets its connection at the end."""

    with Server(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}", twice
        serving.shutdown()


def test_pings_are_told_when_the_context_is_left() -> None:
    with server(answers=True) as (url, twice):
        before = time.perf_counter()
        with pinging(url) as pings:
            assert twice.wait(30)
    assert len(pings) >= 2
    assert all(at > before and took > 0 for at, took in pings)


def test_a_server_that_does_not_answer_is_no_endless_wait() -> None:
    with (
        server(answers=False) as (url, asked),
        pytest.raises(ConnectionError, match="/ping has ended"),
        pinging(url),
    ):
        assert asked.wait(30)
