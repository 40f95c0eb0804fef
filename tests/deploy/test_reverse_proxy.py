"""The reverse proxies of docs/reverse-proxy.md, with the real programs before the real server."""

import asyncio
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.coordinator.served import serving

PAGE = Path(__file__).parents[2] / "docs" / "reverse-proxy.md"
TLS = re.compile(r"^\s*ssl_certificate.*\n", re.MULTILINE)
BODY_BYTES = 8 * 2**20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def documented(proxy: str, port: int, backend: int) -> str:
    """The example of the page, without TLS and with the ports of a test."""
    example = PAGE.read_text().partition(f"<!-- tested: {proxy} -->")[2]
    config = example.partition("\n```")[2].partition("\n")[2].partition("\n```")[0] + "\n"
    for old, new in {
        "listen 8443 ssl": f"listen 127.0.0.1:{port}",
        "bind :8443 ssl crt /etc/haproxy/tls/baton.pem": f"bind 127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{backend}",
    }.items():
        config = config.replace(old, new)
    return TLS.sub("", config)


@asynccontextmanager
async def running(proxy: str, folder: Path, backend: int) -> AsyncIterator[str]:
    """The URL of the proxy in front of ``backend``."""
    program = shutil.which(proxy, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip(f"{proxy} is not installed")
    port, config = free_port(), folder / f"{proxy}.conf"
    text = documented(proxy, port, backend)
    if proxy == "nginx":
        text = (
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;\n"
            "events { worker_connections 1024; }\n"
            f"http {{ access_log off; client_body_temp_path {folder}/body;\n"
            f"proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;\n"
            f"uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n{text}}}\n"
        )
        command = [program, "-p", str(folder), "-e", "stderr", "-c", str(config)]
    else:
        command = [program, "-db", "-f", str(config)]
    config.write_text(text)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        await until_open(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 10.0)


async def until_open(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(10.0):
        while True:
            if process.returncode is not None:
                assert process.stdout is not None
                raise AssertionError((await process.stdout.read()).decode())
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)  # the programs tell nobody when they listen
                continue
            writer.close()
            return


class App:
    """Streams one event after the other, when the test says so; counts the bytes of bodies."""

    def __init__(self) -> None:
        self.go_on = asyncio.Semaphore(0)
        self.left = asyncio.Event()
        self.heads: list[dict[bytes, bytes]] = []
        self.clients: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.heads.append(dict(scope["headers"]))
        self.clients.append(scope["client"][0])
        if scope["path"] == "/stream":
            await self._stream(receive, send)
            return
        num_bytes, more = 0, True
        while more:
            message = await receive()
            num_bytes += len(message.get("body", b""))
            more = message.get("more_body", False)
        answer = str(num_bytes).encode()
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(self._watch(receive))
        while not gone.done():
            going_on = asyncio.create_task(self.go_on.acquire())
            await asyncio.wait({gone, going_on}, return_when=asyncio.FIRST_COMPLETED)
            going_on.cancel()
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
async def test_a_documented_proxy_passes_on_streams_bodies_and_the_end_of_a_client(
    proxy: str, tmp_path: Path
) -> None:
    app = App()
    async with (
        serving(app) as (_, backend),
        running(proxy, tmp_path, backend) as url,
        httpx.AsyncClient(base_url=url, timeout=10.0) as client,
    ):
        answer = await client.post("/count", content=bytes(BODY_BYTES))
        assert (answer.status_code, answer.text) == (200, str(BODY_BYTES))
        too_long = await client.post("/count", content=bytes(33 * 2**20))
        assert too_long.status_code in (413, 200)  # HAProxy leaves the limit to Baton
        async with client.stream("GET", "/stream") as stream:
            events = stream.aiter_raw()
            for _ in range(3):  # each arrives before the next one is sent
                app.go_on.release()
                assert await asyncio.wait_for(anext(events), 5.0) == b"data: {}\n\n"
        await asyncio.wait_for(app.left.wait(), 5.0)
    assert {head[b"host"] for head in app.heads} == {url.removeprefix("http://").encode()}
    assert all(b"x-forwarded-for" in head for head in app.heads)


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
async def test_a_documented_proxy_keeps_connections_and_limits_requests(
    proxy: str, tmp_path: Path
) -> None:
    app = App()
    async with serving(app) as (server, backend), running(proxy, tmp_path, backend) as url:
        async with httpx.AsyncClient(base_url=url, timeout=10.0) as client:
            for _ in range(20):
                assert (await client.get("/count")).status_code == 200
        assert len(server.server_state.connections) <= 2
        answers = b"".join(await asyncio.gather(*(pipelined(url, 70) for _ in range(10))))
    assert b"HTTP/1.1 200" in answers
    assert b"HTTP/1.1 429" in answers


async def pipelined(url: str, num_requests: int) -> bytes:
    """The answers to many requests, sent at once on one connection."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n" * (num_requests - 1))
    writer.write(b"GET /count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(20.0):
        answers = await reader.read(-1)
    writer.close()
    return answers
