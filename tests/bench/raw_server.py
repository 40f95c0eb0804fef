"""A server whose every byte is written by the test."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, token_id: int, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"text":"{text}","token_ids":[{token_id}],"finish_reason":{finish}}}'
    return f'data: {{"choices":[{choice}],"usage":null}}\n\n'.encode()


STREAM = [
    HEAD + chunk(event("Hi", 7)),
    chunk(event(" you", 8, '"length"')),
    chunk(b'data: {"choices":[],"usage":%b}\n\n' % USAGE),
    chunk(b"data: [DONE]\n\n"),
    b"0\r\n\r\n",
]


@asynccontextmanager
async def serving(
    pieces: Callable[[], list[bytes]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers every request with ``pieces``, each in a write of its own; a last piece that ends no
    response ends the connection, one that is ``b"hang"`` leaves it open and silent."""
    requests: list[bytes] = []
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            for piece in pieces():
                if piece == b"hang":
                    await over.wait()
                writer.write(piece)
                await writer.drain()
            if not pieces()[-1].endswith(b"\r\n\r\n"):
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http{'s' if tls else ''}://{host}:{port}", requests
    finally:
        over.set()
        server.close()
