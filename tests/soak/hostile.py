"""What clients, strangers and other programs may do to a stack, bounded in count and time."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import redis
import zmq
import zmq.asyncio

from coordinator.record import keys
from tests.soak import tenants
from transport.wire.channel_keys import channel_keys
from transport.wire.messages import PROTOCOL, Goodbye, encode

NUM_BODIES = 300
NUM_CONNECTIONS = 200
NUM_FRAMES = 300
NUM_SCRAPES = 64
SCRAPE_S = 3.0
ANSWER_S = 30.0
_BODIES = (
    b"", b"{", b"\xff\xfe", b'"text"', b"[[[[[[[[[[", b"null", b'{"prompt":', b"{}" * 1000,
    b'{"prompt": "x", "max_tokens": -1}', b'{"prompt": [1e400]}', b'{"prompt": [-1]}',
    b'{"prompt": "x", "stop": [""]}', b'{"prompt": [[[1]]]}', b'{"prompt": "x", "n": 1000000}',
    b"[" * 100_000, b'{"prompt": "' + b"\\ud800" * 1000 + b'", "max_tokens": 0.5}',
)  # fmt: skip
_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
_NO_HTTP = (
    b"\x00" * 512, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"A" * 70_000,
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip


def halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def wake(pid: int) -> None:
    """SIGCONT; a process may have been ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def replace_keys(server: "redis.Redis[str]", draw: random.Random) -> str:
    """Three open requests' records, and the list of open requests of a coordinator."""
    lists = sorted(server.scan_iter(keys.open_requests("*"), count=1000))
    found = sorted(server.smembers(lists[0])) if lists else []
    replaced = [keys.request(request_id) for request_id in found[: draw.randint(1, 3)]]
    with server.pipeline(transaction=True) as pipeline:
        for name in (*replaced, *lists[:1]):
            pipeline.delete(name).rpush(name, "another program's")
        pipeline.execute()
    return f"{len(replaced)} records, {len(lists[:1])} list of open requests"


async def bad_bodies(url: str, draw: random.Random) -> str:
    """Raises RuntimeError when one is answered by anything but a refusal of the client."""
    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(
        base_url=url, timeout=ANSWER_S, limits=limits, headers=tenants.headers()
    ) as http:

        async def send(body: bytes) -> int:
            path = draw.choice(_PATHS)
            headers = {"Content-Type": "application/json"}
            return (await http.post(path, content=body, headers=headers)).status_code

        statuses = await asyncio.gather(*(send(draw.choice(_BODIES)) for _ in range(NUM_BODIES)))
    if wrong := sorted({status for status in statuses if not 400 <= status < 500}):
        raise RuntimeError(f"bad bodies were answered by {wrong}")
    return f"{NUM_BODIES} bodies"


async def no_http(url: str, draw: random.Random) -> str:
    address = urlsplit(url)

    async def send(content: bytes) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        with suppress(OSError):
            writer.write(content)
            await writer.drain()
            async with asyncio.timeout(draw.uniform(0.1, 2.0)):
                await reader.read()
        writer.close()

    async def bounded(content: bytes) -> None:
        with suppress(OSError, TimeoutError):
            await send(content)

    await asyncio.gather(*(bounded(draw.choice(_NO_HTTP)) for _ in range(NUM_CONNECTIONS)))
    return f"{NUM_CONNECTIONS} connections"


async def idle_connections(url: str, draw: random.Random) -> str:
    address = urlsplit(url)
    opened = await asyncio.gather(
        *(asyncio.open_connection(address.hostname, address.port) for _ in range(NUM_CONNECTIONS)),
        return_exceptions=True,
    )
    await asyncio.sleep(draw.uniform(1.0, 3.0))
    for found in opened:
        if not isinstance(found, BaseException):
            found[1].close()
    return f"{NUM_CONNECTIONS} connections"


async def scrapes(url: str, draw: random.Random) -> str:
    paths = ("/metrics", "/status", "/v1/requests?limit=200", "/", "/openapi.json")
    num_answers = 0
    until = asyncio.get_running_loop().time() + SCRAPE_S
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, headers=tenants.headers()) as http:

        async def scrape() -> None:
            nonlocal num_answers
            while asyncio.get_running_loop().time() < until:
                answer = await http.get(draw.choice(paths))
                if answer.status_code not in (200, 503):
                    raise RuntimeError(f"{answer.url.path} was answered by {answer.status_code}")
                num_answers += 1

        await asyncio.gather(*(scrape() for _ in range(NUM_SCRAPES)))
    return f"{num_answers} answers to {NUM_SCRAPES} connections in {SCRAPE_S:g} s"


async def bad_frames(endpoint: str, secret: str, draw: random.Random) -> str:
    """Random, cut and mistyped frames from a peer that knows the secret, or from a stranger."""
    context = zmq.asyncio.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, f"prefill-bad{draw.randrange(10**6)}".encode())
    if keys_ := channel_keys(secret):
        peer.setsockopt(zmq.CURVE_SERVERKEY, keys_.coordinator.public)
        peer.setsockopt(zmq.CURVE_PUBLICKEY, keys_.worker.public)
        peer.setsockopt(zmq.CURVE_SECRETKEY, keys_.worker.secret)
    peer.connect(endpoint)
    protocol, num_sent = PROTOCOL.encode(), 0
    try:
        for _ in range(NUM_FRAMES):
            frames = draw.choice((
                [protocol, draw.randbytes(draw.randrange(200))],
                [protocol, b"\x82\xa4type\xa7goodbye\xa5unfit\xa1\xff"],
                [protocol, b"\x82\xa4type\xa5hello"],
                [protocol, b"\xdf\xff\xff\xff\xff"],
                [protocol], [b""], [protocol, b"", b"three"], [draw.randbytes(9), b"x"],
            ))  # fmt: skip
            with suppress(zmq.Again):
                await peer.send_multipart(frames, zmq.NOBLOCK)
                num_sent += 1
            if num_sent % 50 == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    finally:
        peer.close(linger=0)
        context.term()
    return f"{num_sent} frames {'with' if secret else 'without'} the secret"


async def second_connection(endpoint: str, secret: str, instance: str) -> str:
    """A peer that knows the secret and takes a worker's name: first it is silent, then it says
    goodbye in that name."""
    context = zmq.asyncio.Context()
    keys_ = channel_keys(secret)
    for speaks in (False, True):
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.IDENTITY, instance.encode())
        if keys_ is not None:
            peer.setsockopt(zmq.CURVE_SERVERKEY, keys_.coordinator.public)
            peer.setsockopt(zmq.CURVE_PUBLICKEY, keys_.worker.public)
            peer.setsockopt(zmq.CURVE_SECRETKEY, keys_.worker.secret)
        peer.connect(endpoint)
        if speaks:
            await peer.send_multipart([PROTOCOL.encode(), encode(Goodbye())])
        if await peer.poll(1_000):
            raise RuntimeError(f"a second connection of {instance} was answered")
        peer.close(linger=0)
    context.term()
    return instance
