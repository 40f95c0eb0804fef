"""``python -m tests.bench.stub``: an OpenAI-compatible server whose timings and tokens are known.

The harness is checked against it: what is measured must be what the stub did. It also shows what
the client itself costs on a machine, and how each kind of bad server looks in a report.

Its vocabulary: token ``i`` is two small letters, ``aa`` to ``zz``; every text of letters has one
tokenization. Token ``k`` of an answer is sent at ``ttft_s + k * itl_s`` after the request came,
held back to the end of its event where an event carries several.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
import typer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB_SIZE = len(LETTERS) ** 2
FAULTS = ("refuse", "stall", "garbage", "not_http", "drop", "error", "truncate", "mute")
Fault = Literal["refuse", "stall", "garbage", "not_http", "drop", "error", "truncate", "mute"]
_encode = msgspec.json.encode


def decode(ids: Sequence[int]) -> str:
    return "".join(LETTERS[i // 26] + LETTERS[i % 26] for i in ids)


def encode(text: str) -> list[int]:
    """Two characters a token; what is no letter counts as ``a``."""
    places = [max(0, LETTERS.find(c)) for c in text]
    return [26 * a + b for a, b in zip(places[::2], [*places[1::2], 0], strict=False)]


@dataclass(frozen=True)
class Behaviour:
    """What the stub does. ``fault_every`` n: every n-th request goes wrong by
    ``fault`` after ``fault_after`` tokens; ``usage_factor`` is what its usage lies by.
    ``tells_cached``: its usage says how many tokens a prompt and an earlier prompt with its answer
    have in common. ``status``: the answer of /status."""

    ttft_s: float = 0.02
    itl_s: float = 0.005
    tokens_per_event: int = 1
    give_ids: bool = False
    usage_factor: float = 1.0
    tells_cached: bool = False
    answer_len: int | None = None
    fault: Fault | None = None
    fault_every: int = 1
    fault_after: int = 2
    status: Any = None


@dataclass
class Served:
    """What the stub did for one request; ``perf_counter`` seconds."""

    came_at_s: float
    event_at_s: list[float] = field(default_factory=list)
    done_at_s: float | None = None
    num_tokens: int = 0
    body: dict[str, Any] = field(default_factory=dict)


class Stub:
    """Serves on a free port (or ``port``) while entered; ``served`` has an entry a
    completion, ``on_request`` is told the number of each, from 1, as it comes."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.served: list[Served] = []
        self.url = ""
        self.on_request: Callable[[int], None] = lambda number: None
        self._earlier: list[str] = []
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "Stub":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False: the connection ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        served = Served(perf_counter())
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        content = await reader.readexactly(length)
        path = head.split(b" ", 2)[1].decode()
        served.body = msgspec.json.decode(content) if content else {}
        if path.endswith("/completions"):
            self.served.append(served)
            self.on_request(len(self.served))
            return await self._complete(served, writer, chat="chat" in path)
        writer.write(_response(200, self._tell(path, served.body)))
        return True

    def _tell(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            tokens = encode(body["prompt"])
            return {"tokens": tokens, "count": len(tokens)}
        if path == "/detokenize":
            return {"prompt": decode(body["tokens"])}
        if path == "/version":
            return {"version": "stub"}
        if path == "/status" and self.behaviour.status is not None:
            found: dict[str, Any] = self.behaviour.status
            return found
        return {"object": "list", "data": [{"id": "stub", "object": "model"}]}

    async def _complete(self, served: Served, writer: asyncio.StreamWriter, *, chat: bool) -> bool:
        do, body, number = self.behaviour, served.body, len(self.served) - 1
        fault = do.fault if number % do.fault_every == do.fault_every - 1 else None
        asked = body.get("max_tokens") or 16
        count = min(asked, do.answer_len or asked)
        ids = [(number * 7919 + k * 31) % VOCAB_SIZE for k in range(count)]
        served.num_tokens = count
        if fault == "refuse":
            error = {"error": {"message": "full", "type": "server_error"}}
            writer.write(_response(503, error, "Retry-After: 2\r\n"))
            return True
        if fault == "not_http":
            writer.write(b"I am no web server\n")
            return False
        if fault == "mute":
            await asyncio.get_running_loop().create_future()
        usage = _usage(body, count, do.usage_factor, chat=chat)
        if do.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached(body, ids)}
        if not body.get("stream"):
            await _until(served.came_at_s + do.ttft_s + (count - 1) * do.itl_s)
            whole = _choice(ids, chat=chat, stream=False, ids=do.give_ids, finish="length")
            writer.write(_response(200, {"choices": [whole], "usage": usage}))
            served.done_at_s = perf_counter()
            return True
        writer.write(_HEAD)
        for begin in range(0, count, do.tokens_per_event):
            if fault is not None and begin >= do.fault_after:
                return await _go_wrong(fault, writer)
            end = min(begin + do.tokens_per_event, count)
            await _until(served.came_at_s + do.ttft_s + (end - 1) * do.itl_s)
            finish = "length" if end == count else None
            part = _choice(ids[begin:end], chat=chat, stream=True, ids=do.give_ids, finish=finish)
            writer.write(_event({"choices": [part]}))
            served.event_at_s.append(perf_counter())
        if body.get("stream_options", {}).get("include_usage"):
            writer.write(_event({"choices": [], "usage": usage}))
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        served.done_at_s = perf_counter()
        await writer.drain()
        return True

    def _cached(self, body: dict[str, Any], answer: Sequence[int]) -> int:
        text = "".join(message["content"] for message in body["messages"])
        common = max((_common(text, one) for one in self._earlier), default=0)
        self._earlier.append(text + decode(answer))
        return common // 2


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def _until(at_s: float) -> None:
    if (left := at_s - perf_counter()) > 0:
        await asyncio.sleep(left)


async def _go_wrong(fault: Fault, writer: asyncio.StreamWriter) -> bool:
    if fault == "stall":
        await asyncio.get_running_loop().create_future()
    if fault == "garbage":
        writer.write(_chunk(b'data: {"choices": [{"te\xff\n\n') + b"0\r\n\r\n")
    if fault == "error":
        error = {"error": {"message": "out of memory", "code": 500}}
        writer.write(_event(error) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    if fault == "truncate":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return fault != "drop"


def _choice(
    tokens: Sequence[int], *, chat: bool, stream: bool, ids: bool, finish: str | None
) -> dict[str, Any]:
    said = {"role": "assistant", "content": decode(tokens)}
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {"delta" if stream else "message": said} if chat else {"text": decode(tokens)}
    return choice | ({"token_ids": list(tokens)} if ids else {})


def _usage(body: dict[str, Any], count: int, factor: float, *, chat: bool) -> dict[str, Any]:
    prompt = body.get("prompt", "")
    text = "".join(m["content"] for m in body["messages"]) if chat else prompt
    num_prompt = len(encode(text)) if isinstance(text, str) else len(text)
    said = round(count * factor)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": said,
        "total_tokens": num_prompt + said,
    }


def _response(status: int, body: dict[str, Any], headers: str = "") -> bytes:
    content = _encode(body)
    head = f"HTTP/1.1 {status} Stub\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _event(body: dict[str, Any]) -> bytes:
    return _chunk(b"data: %b\n\n" % _encode(body))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def main(
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8010,
    ttft_ms: Annotated[float, typer.Option(help="From the request to its first token.")] = 20.0,
    itl_ms: Annotated[float, typer.Option(help="From token to token.")] = 5.0,
    tokens_per_event: Annotated[int, typer.Option(help="Tokens in one event.")] = 1,
    fault: Annotated[str | None, typer.Option(help=", ".join(FAULTS))] = None,
    fault_every: Annotated[int, typer.Option(help="Every n-th request goes wrong.")] = 1,
    usage_factor: Annotated[float, typer.Option(help="What usage lies by.")] = 1.0,
) -> None:
    """Serve until Ctrl-C."""
    if fault is not None and fault not in FAULTS:
        raise typer.BadParameter(f"{fault}: not one of {', '.join(FAULTS)}")
    behaviour = Behaviour(
        ttft_ms / 1000, itl_ms / 1000, tokens_per_event,
        usage_factor=usage_factor, fault=fault, fault_every=fault_every,  # type: ignore[arg-type]
    )  # fmt: skip

    async def serve() -> None:
        async with Stub(behaviour, port) as stub:
            typer.echo(f"ready: {stub.url}")
            await asyncio.get_running_loop().create_future()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


if __name__ == "__main__":
    typer.run(main)
