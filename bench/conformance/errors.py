"""Checks: what is refused, and how."""

from bench.conformance.check import Need, NotOffered, Source, Suite, require
from bench.conformance.questions import SUM
from bench.conformance.reading import error_of, ok
from bench.conformance.server import CHAT, COMPLETIONS, Answer, Server

ERRORS = Suite()

_LIMIT_BYTES = 4096
_FAR_TOO_LONG = 4_000_000  # tokens; used where the server does not tell its limit


def _refused(answer: Answer, status: int) -> None:
    """A refusal of the right status and shape, which is never FastAPI's 422."""
    require(answer.status != 422, f"a 422, which OpenAI's clients do not know: {answer}")
    error_of(answer, status)


@ERRORS.check("a body that is not JSON is a 400", Need.REQUIRED, Source.OPENAI)
async def bad_json(server: Server) -> str:
    for content in (b'{"messages": [', b"", b"\xff\xfe", b"[]"):
        _refused(await server.send(CHAT, content), 400)
    return ""


@ERRORS.check("a field of a wrong type is a 400", Need.REQUIRED, Source.OPENAI)
async def bad_type(server: Server) -> str:
    _refused(await server.chat(SUM, temperature="hot"), 400)
    _refused(await server.post(CHAT, {"messages": "hello"}), 400)
    _refused(await server.complete({"text": "hello"}), 400)
    return ""


@ERRORS.check("a field out of its range is a 400", Need.REQUIRED, Source.OPENAI)
async def bad_range(server: Server) -> str:
    for fields in ({"temperature": -1}, {"top_p": 2}, {"max_tokens": -1}, {"n": 0}):
        _refused(await server.chat(SUM, **fields), 400)
    return ""


@ERRORS.check("messages missing or empty is a 400", Need.REQUIRED, Source.OPENAI)
async def no_messages(server: Server) -> str:
    _refused(await server.post(CHAT, {}), 400)
    _refused(await server.post(CHAT, {"messages": []}), 400)
    return ""


@ERRORS.check("a prompt longer than the context is a 400", Need.REQUIRED, Source.OPENAI)
async def too_long(server: Server) -> str:
    entries = ok(await server.get("/v1/models"))["data"]
    limits = [entry.get("max_model_len") for entry in entries if entry.get("id") == server.model]
    num_ids = limits[0] + 1 if limits and isinstance(limits[0], int) else _FAR_TOO_LONG
    _refused(await server.complete([40] * num_ids, max_tokens=1), 400)
    return f"{num_ids} tokens"


@ERRORS.check("a model that is not there is a 404", Need.REQUIRED, Source.OPENAI)
async def no_such_model(server: Server) -> str:
    _refused(await server.chat(SUM, model="no-such-model", max_tokens=1), 404)
    _refused(await server.complete("Hi", model="no-such-model", max_tokens=1), 404)
    return ""


@ERRORS.check("a path that is not there is a 404 of that shape", Need.RECOMMENDED, Source.CLIENTS)
async def no_such_path(server: Server) -> str:
    _refused(await server.get("/v1/no-such-path"), 404)
    return ""


@ERRORS.check("a wrong method is refused in that shape", Need.RECOMMENDED, Source.CLIENTS)
async def wrong_method(server: Server) -> str:
    answer = await server.get(COMPLETIONS)
    if answer.status == 404:
        raise NotOffered(str(answer))
    _refused(answer, 405)
    return ""


@ERRORS.check("a refusal is short and repeats little", Need.RECOMMENDED, Source.CLIENTS)
async def short(server: Server) -> str:
    answer = await server.chat(SUM, temperature="x" * 100_000)
    error_of(answer, 400)
    size = len(answer.body)
    require(size < _LIMIT_BYTES, f"{size} bytes, not under {_LIMIT_BYTES}")
    return f"{size} bytes"


@ERRORS.check("a streamed request is refused before its stream", Need.REQUIRED, Source.OPENAI)
async def refused_stream(server: Server) -> str:
    answer = await server.chat(SUM, stream=True, temperature=-1)
    error_of(answer, 400)
    kind = answer.headers.get("content-type", "")
    require("json" in kind, f"content-type is {kind!r}")
    return ""
