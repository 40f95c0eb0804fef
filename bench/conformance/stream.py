"""Checks: /v1/chat/completions as server-sent events."""

from typing import Any

from bench.conformance.check import Need, Source, Suite, require
from bench.conformance.questions import SUM
from bench.conformance.reading import chat_text, choices, chunks, ok, streamed_text, usage
from bench.conformance.server import Answer, Server

STREAM = Suite()


async def _stream(server: Server, **fields: Any) -> Answer:
    return await server.chat(SUM, stream=True, **{"max_tokens": 48, **fields})


@STREAM.check("a stream's chunks have their shape", Need.REQUIRED, Source.OPENAI)
async def shape(server: Server) -> str:
    answer = await _stream(server)
    found = chunks(answer)
    kind = answer.headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}")
    require(len({chunk.get("id") for chunk in found}) == 1, "the id changes within the stream")
    for chunk in found:
        name = chunk.get("object")
        require(name == "chat.completion.chunk", f"object is {name!r}")
    return f"{len(found)} chunks"


@STREAM.check("the first chunk carries the role", Need.REQUIRED, Source.OPENAI)
async def role_first(server: Server) -> str:
    first = choices(chunks(await _stream(server))[0])
    delta = first[0].get("delta") if first else None
    require((delta or {}).get("role") == "assistant", f"the first chunk's choices are {first!r}")
    return ""


@STREAM.check("one finish reason, in the last chunk", Need.REQUIRED, Source.OPENAI)
async def one_finish_reason(server: Server) -> str:
    found = chunks(await _stream(server))
    reasons = [one.get("finish_reason") for chunk in found for one in choices(chunk)]
    given = [reason for reason in reasons if reason is not None]
    require(len(given) == 1, f"finish reasons: {given}")
    require(reasons[-1] is not None, "text came after the finish reason")
    require(given[0] in ("stop", "length"), f"finish_reason is {given[0]!r}")
    return str(given[0])


@STREAM.check("the stream says what the whole answer says", Need.RECOMMENDED, Source.OPENAI)
async def same_text(server: Server) -> str:
    whole = chat_text(ok(await server.chat(SUM, max_tokens=48)))
    streamed = streamed_text(chunks(await _stream(server)))
    require(streamed == whole, f"streamed {streamed!r}, whole {whole!r}")
    return ""


@STREAM.check("text comes while it is generated", Need.REQUIRED, Source.OPENAI)
async def in_pieces(server: Server) -> str:
    found = chunks(await _stream(server))
    pieces = sum(bool(streamed_text([chunk])) for chunk in found)
    require(pieces > 1, f"{pieces} chunk with text for 48 tokens")
    return f"{pieces} pieces"


@STREAM.check("only data lines, [DONE] last", Need.REQUIRED, Source.SSE)
async def form(server: Server) -> str:
    answer = await _stream(server)
    chunks(answer)
    problems = answer.events().problems
    require(not problems, "; ".join(problems))
    return ""


@STREAM.check("no empty choices unless usage is asked for", Need.REQUIRED, Source.CLIENTS)
async def no_empty_choices(server: Server) -> str:
    for chunk in chunks(await _stream(server)):
        require(bool(choices(chunk)), f"a chunk without choices: {chunk!r}")
        require(chunk.get("usage") is None, f"usage unasked for: {chunk!r}")
    return ""


@STREAM.check("include_usage gives usage in the last chunk", Need.REQUIRED, Source.OPENAI)
async def usage_chunk(server: Server) -> str:
    options = {"include_usage": True}
    found = chunks(await _stream(server, max_tokens=3, stream_options=options))
    *others, last = found
    require(choices(last) == [], f"the last chunk has choices: {last!r}")
    prompt, completion = usage(last)
    require(completion == 3, f"{completion} tokens in usage, not 3")
    for chunk in others:
        require(chunk.get("usage") is None, f"usage before the last chunk: {chunk!r}")
        require(bool(choices(chunk)), f"a chunk without choices: {chunk!r}")
    return f"{prompt} + {completion} tokens"


@STREAM.check("a stop string never shows in a stream", Need.REQUIRED, Source.OPENAI)
async def stop_string(server: Server) -> str:
    before = streamed_text(chunks(await _stream(server)))
    stop = before[len(before) // 2 :][:6]
    found = chunks(await _stream(server, stop=[stop]))
    text = streamed_text(found)
    require(text == before.split(stop)[0], f"{text!r} is not {before!r} up to {stop!r}")
    return f"stop {stop!r}"


@STREAM.check("no <think> in a stream", Need.REQUIRED, Source.CLIENTS)
async def no_think(server: Server) -> str:
    text = streamed_text(chunks(await _stream(server, max_tokens=256)))
    for tag in ("<think>", "</think>"):
        require(tag not in text, f"{tag} in {text[:200]!r}")
    return ""
