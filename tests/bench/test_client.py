"""The client against servers whose every byte is written here."""

import asyncio
import socket
import ssl
from pathlib import Path

import msgspec
import pytest

from bench.harness.client import client as client_module
from bench.harness.client.asking import Ask, chat, completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import Deadlines, endpoint
from bench.harness.client.record import Failure, Record
from bench.harness.client.required import RequestFailed, at_once, one_by_one
from tests.bench.raw_server import HEAD, STREAM, chunk, event, serving

ASK = completion("m", [1, 2, 3], max_tokens=2)
SHORT = Deadlines(connect_s=5, first_byte_s=0.2, stall_s=0.2, request_s=5)


async def ask(pieces: list[bytes], what: Ask = ASK, deadlines: Deadlines | None = None) -> Record:
    async with serving(lambda: pieces) as (url, _), Client(endpoint(url), deadlines) as client:
        return await client.send(what)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_a_stream_however_it_is_cut(size: int) -> None:
    whole = b"".join(STREAM)
    record = await ask([whole[i : i + size] for i in range(0, len(whole), size)])
    assert record.ok
    assert (record.text, record.token_ids) == ("Hi you", (7, 8))
    assert record.finish_reason == "length"
    assert record.said_tokens == 2
    assert sum(arrival.num_ids for arrival in record.arrivals) == 2
    assert record.ttft_s is not None
    assert 0 < record.ttft_s <= record.e2e_s
    assert record.remarks == ()


async def test_lines_may_end_as_on_windows_and_comments_are_passed_over() -> None:
    body = (event("Hi", 7, '"stop"') + b": ping\n\n" + b"data: [DONE]\n\n").replace(b"\n", b"\r\n")
    record = await ask([HEAD, chunk(body), b"0\r\n\r\n"])
    assert record.ok
    assert record.text == "Hi"
    assert record.remarks == ("no usage",)


async def test_a_chat_with_reasoning_and_a_role_that_is_no_token() -> None:
    def delta(fields: str, finish: str = "null") -> bytes:
        return chunk(
            f'data: {{"choices":[{{"delta":{{{fields}}},"finish_reason":{finish}}}]}}\n\n'.encode()
        )

    pieces = [HEAD, delta('"role":"assistant","content":""'), delta('"reasoning_content":"hm"')]
    pieces += [delta('"content":"4"', '"stop"'), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    record = await ask(pieces, chat("m", "2 + 2?"))
    assert (record.text, record.reasoning, record.finish_reason) == ("4", "hm", "stop")
    assert sum(arrival.num_events for arrival in record.arrivals) == 2


async def test_an_answer_in_one_piece() -> None:
    body = b'{"choices":[{"text":"Hi","finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    record = await ask([head, body], completion("m", "a", stream=False))
    assert (record.ok, record.text, record.said_tokens) == (True, "Hi", 1)
    assert record.ttft_s is None
    assert record.itl_s == []


async def test_a_body_that_ends_with_its_connection() -> None:
    record = await ask([b"HTTP/1.0 200 OK\r\n\r\n", event("Hi", 1, '"stop"')])
    assert record.ok
    assert record.remarks == ("no [DONE]", "no usage")


async def test_the_address_the_key_and_the_fields_are_sent() -> None:
    what = completion("m", "a", max_tokens=2, ignore_eos=True, temperature=0.5)
    async with serving(lambda: STREAM) as (url, requests):
        client = Client(endpoint(url + "/proxy/v1/", api_key="sk-1"))
        await client.send(what)
        client.abort()
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /proxy/v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer sk-1" in head
    assert msgspec.json.decode(body) == {
        "model": "m", "prompt": "a", "stream": True, "stream_options": {"include_usage": True},
        "max_tokens": 2, "ignore_eos": True, "temperature": 0.5,
    }  # fmt: skip


async def test_https_is_verified_unless_told_otherwise() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parent / "localhost.pem")
    async with serving(lambda: STREAM, context) as (url, _):
        async with Client(endpoint(url)) as client:
            refused = await client.send(ASK)
        async with Client(endpoint(url, verify_tls=False)) as client:
            record = await client.send(ASK)
    assert url.startswith("https://")
    assert refused.failure == Failure.CONNECT
    assert "CERTIFICATE_VERIFY_FAILED" in refused.detail
    assert (record.ok, record.text) == (True, "Hi you")


async def test_connections_are_kept_and_all_requests_answered() -> None:
    async with serving(lambda: STREAM) as (url, requests):
        assert len(await one_by_one(url, [{"prompt": "a"}] * 3)) == 3
        assert len(await at_once(url, [{"prompt": "b"}] * 9, concurrency=4)) == 9
    assert len(requests) == 12


async def test_stale_connections_do_not_count_as_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(lambda: STREAM) as (url, _), Client(endpoint(url)) as client:
        await client.open(3)
        first = list(client._idle)
        await client.open(4)
        assert client._idle[:3] == first
        monkeypatch.setattr(client_module, "KEEP_ALIVE_S", 0.0)
        await client.open(2)
        assert len(client._idle) == 2
        assert not set(first) & set(client._idle)
        assert not any(connection.usable for connection in first)


@pytest.mark.parametrize(
    ("pieces", "failure", "detail"),
    [
        ([b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy"], Failure.HTTP, "HTTP 503: busy"),
        ([b"", b"x"], Failure.GARBAGE, "not HTTP"),
        (STREAM[:2], Failure.DROPPED, "connection lost after"),
        ([b""], Failure.DROPPED, "without an answer"),
        ([b"hang", b""], Failure.STALLED, "no byte within 0.2 s"),
        ([*STREAM[:1], b"hang", b""], Failure.STALLED, "silent for 0.2 s"),
        ([HEAD, chunk(b'data: {"error":"gone"}\n\n'), b"0\r\n\r\n"], Failure.STREAM_ERROR, "gone"),
        ([HEAD, chunk(b"data: {nonsense\n\n"), b"0\r\n\r\n"], Failure.GARBAGE, "nonsense"),
        ([HEAD, chunk(b"<html>\n"), b"0\r\n\r\n"], Failure.GARBAGE, "no event"),
        ([HEAD, chunk(b'data: {"a":1}\n\n'), b"0\r\n\r\n"], Failure.GARBAGE, "no choices"),
        ([STREAM[0], b"0\r\n\r\n"], Failure.TRUNCATED, "neither finish_reason nor"),
    ],
)  # fmt: skip
async def test_what_is_no_completion_is_a_record_that_says_so(
    pieces: list[bytes], failure: Failure, detail: str
) -> None:
    record = await ask(pieces, deadlines=SHORT if failure == Failure.STALLED else None)
    assert record.failure == failure
    assert detail in record.detail


async def test_what_came_before_a_failure_is_kept() -> None:
    record = await ask([*STREAM[:1], b"hang", b""], deadlines=SHORT)
    assert (record.text, record.token_ids, len(record.arrivals)) == ("Hi", (7,), 1)


async def test_a_total_deadline_ends_a_response_that_trickles() -> None:
    pieces = [HEAD, *[chunk(event("a", 1))] * 3, b"hang", b""]
    record = await ask(pieces, deadlines=Deadlines(stall_s=5, request_s=0.2))
    assert record.failure == Failure.TIMEOUT


async def test_no_server_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Client(endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}")) as client:
            record = await client.send(ASK)
    assert record.failure == Failure.CONNECT
    assert record.sent_at_s is None


async def test_an_interrupted_run_ends_its_requests_as_cancelled() -> None:
    asked = asyncio.Event()

    def answer() -> list[bytes]:
        asked.set()
        return [STREAM[0], b"hang", b""]

    async with serving(answer) as (url, _), Client(endpoint(url)) as client:
        running = asyncio.create_task(client.send(ASK))
        await asked.wait()
        client.abort()
        records = [await running, await client.send(ASK)]
    assert [record.failure for record in records] == [Failure.CANCELLED] * 2


async def test_whoever_needs_an_answer_gets_an_exception() -> None:
    async with serving(lambda: [b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy"]) as (url, _):
        with pytest.raises(RequestFailed, match="503: busy"):
            await one_by_one(url, [{"prompt": "a"}])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a", "http://a:80"),
        ("https://a:8443/v1", "https://a:8443"),
        ("http://[::1]:80/x/v1/", "http://[::1]:80/x"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert endpoint(url).url == shown


@pytest.mark.parametrize("url", ["a:8000", "ftp://a", "http://", "http://u:p@a", "http://a:x"])
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="url:"):
        endpoint(url)


def test_a_deadline_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="stall_s"):
        Deadlines(stall_s=0)
