"""Checks: what the server says about itself, what it refuses, and how."""

from typing import Any

import msgspec

from bench.harness.conformance.check import (
    CLIENTS,
    OPERATORS,
    Ask,
    Check,
    Run,
    chat,
    complete,
    get,
    messages,
    recommended,
)
from bench.harness.conformance.server import CHAT, COMPLETIONS, Answer, NotOffered, Server, require

_LIMIT_BYTES = 4096
_FAR_TOO_LONG = 4_000_000  # tokens; used where the server does not tell its limit
_ABSENT = "no-such-model"
_ORIGIN = "https://conformance.example"


class Model(msgspec.Struct):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: Any = None


class Models(msgspec.Struct):
    object: str
    data: list[Model]


class Error(msgspec.Struct):
    message: str
    type: str
    param: Any
    code: Any


class Refusal(msgspec.Struct):
    error: Error


def _raw(content: bytes) -> Ask:
    return lambda server: server.send(CHAT, content)


def refused(status: int, *asks: Ask) -> Run:
    """A check: each request is refused with this status and OpenAI's shape of errors, never with
    FastAPI's 422."""

    async def run(server: Server) -> None:
        for ask in asks:
            _refused(await ask(server), status)

    return run


def _refused(answer: Answer, status: int) -> None:
    require(answer.status != 422, f"a 422, which OpenAI's clients do not know: {answer}")
    require(answer.status == status, f"expected HTTP {status}, got {answer}")
    require(answer.read(Refusal).error.message, f"no message: {answer}")


def there(answer: Answer) -> None:
    answer.ok()


async def models(server: Server) -> str:
    value = (await server.get("/v1/models")).ok().read(Models)
    kinds = {value.object: "list"} | {entry.object: "model" for entry in value.data}
    require(kinds == {"list": "list", "model": "model"}, f"the objects are {[*kinds]}")
    names = [entry.id for entry in value.data]
    require(server.model in names, f"no {server.model!r} in {names}")
    return f"{len(names)} listed"


async def one_model(server: Server) -> None:
    value = (await server.get(f"/v1/models/{server.model}")).ok().read(Model)
    require(value.id == server.model, f"id is {value.id!r}")


async def request_id(server: Server) -> None:
    sent = "conformance-7f3a.1"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    answer = (await server.post(CHAT, body, {"X-Request-Id": sent})).ok()
    got = answer.headers.get("x-request-id")
    require(got == sent, f"sent {sent!r}, got {got!r}")


async def too_long(server: Server) -> str:
    entries = (await server.get("/v1/models")).ok().read(Models).data
    limits = [entry.max_model_len for entry in entries if entry.id == server.model]
    num_ids = limits[0] + 1 if limits and isinstance(limits[0], int) else _FAR_TOO_LONG
    _refused(await server.complete([40] * num_ids, max_tokens=1), 400)
    return f"{num_ids} tokens"


def wrong_method(answer: Answer) -> None:
    if answer.status == 404:
        raise NotOffered(str(answer))
    _refused(answer, 405)


async def preflight(server: Server) -> None:
    asked = {
        "Origin": _ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = await server.options(CHAT, asked)
    allowed = answer.headers.get("access-control-allow-origin")
    if allowed not in ("*", _ORIGIN):
        raise NotOffered(f"HTTP {answer.status}, access-control-allow-origin is {allowed!r}")
    require(answer.status in (200, 204), f"a preflight request got {answer}")
    names = answer.headers.get("access-control-allow-headers", "").lower()
    require("authorization" in names or names == "*", f"allowed headers: {names!r}")


def named_path(answer: Answer) -> None:
    _refused(answer, 404)
    message = answer.read(Refusal).error.message
    require("/chat/completions" in message, f"the message does not name the path: {message!r}")


def short(answer: Answer) -> str:
    _refused(answer, 400)
    size = len(answer.body)
    require(size < _LIMIT_BYTES, f"{size} bytes, not under {_LIMIT_BYTES}")
    return f"{size} bytes"


def before_the_stream(answer: Answer) -> None:
    _refused(answer, 400)
    kind = answer.headers.get("content-type", "")
    require("json" in kind, f"content-type is {kind!r}")


SERVICE = (
    recommended("GET /health says alive", get("/health"), there, OPERATORS),
    recommended("GET /ready says that it takes work", get("/ready"), there, OPERATORS),
    Check("GET /v1/models lists the model", models),
    recommended("GET /v1/models/{id} gives one model", one_model),
    recommended("GET /v1/models/{unknown} is a 404", refused(404, get(f"/v1/models/{_ABSENT}"))),
    recommended("X-Request-Id comes back", request_id, source=CLIENTS),
    recommended("a browser's preflight request is allowed", preflight, source=CLIENTS),
)
ERRORS = (
    Check(
        "a body that is not JSON is a 400",
        refused(400, *map(_raw, (b'{"messages": [', b"", b"\xff\xfe", b"[]"))),
    ),
    Check(
        "a field of a wrong type is a 400",
        refused(400, chat(temperature="hot"), messages(messages="hello"), complete({"text": "a"})),
    ),
    Check(
        "a field out of its range is a 400",
        refused(400, chat(temperature=-1), chat(top_p=2), chat(max_tokens=-1), chat(n=0)),
    ),
    Check("messages missing or empty is a 400", refused(400, messages(), messages(messages=[]))),
    Check("a prompt longer than the context is a 400", too_long),
    Check(
        "a model that is not there is a 404",
        refused(404, chat(model=_ABSENT, max_tokens=1), complete("Hi", model=_ABSENT)),
    ),
    recommended(
        "a path that is not there is a 404 of that shape",
        refused(404, get("/v1/no-such-path")),
        source=CLIENTS,
    ),
    recommended(
        "a path without /v1 is a 404 that names it",
        lambda server: server.post("/chat/completions", {}),
        named_path,
        CLIENTS,
    ),
    recommended("a wrong method is refused in that shape", get(COMPLETIONS), wrong_method, CLIENTS),
    recommended(
        "a refusal is short and repeats little", chat(temperature="x" * 100_000), short, CLIENTS
    ),
    Check(
        "a streamed request is refused before its stream",
        chat(stream=True, temperature=-1),
        before_the_stream,
    ),
)
