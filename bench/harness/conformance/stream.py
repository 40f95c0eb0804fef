"""Checks: /v1/chat/completions as server-sent events."""

from collections.abc import Callable

from bench.harness.conformance.chat import no_think
from bench.harness.conformance.check import CLIENTS, SSE, SUM, Check, Judge, chat, recommended
from bench.harness.conformance.server import Answer, Completion, Server, require, streamed_text

Chunks = list[Completion]


def shape(answer: Answer) -> str:
    found = answer.chunks()
    kind = answer.headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}")
    require(len({chunk.id for chunk in found}) == 1, "the id changes within the stream")
    for chunk in found:
        require(chunk.object == "chat.completion.chunk", f"object is {chunk.object!r}")
    return f"{len(found)} chunks"


def role_first(found: Chunks) -> None:
    first = found[0].choices
    delta = first[0].delta if first else None
    require(delta and delta.role == "assistant", f"the first chunk's choices are {first!r}")


def one_finish_reason(found: Chunks) -> str:
    reasons = [one.finish_reason for chunk in found for one in chunk.choices]
    given = [reason for reason in reasons if reason is not None]
    require(len(given) == 1, f"finish reasons: {given}")
    require(reasons[-1] is not None, "text came after the finish reason")
    require(given[0] in ("stop", "length"), f"finish_reason is {given[0]!r}")
    return given[0]


async def same_text(server: Server) -> None:
    whole = (await server.chat(SUM, max_tokens=48)).completion().text
    streamed = streamed_text((await server.chat(SUM, max_tokens=48, stream=True)).chunks())
    require(streamed == whole, f"streamed {streamed!r}, whole {whole!r}")


def in_pieces(found: Chunks) -> str:
    pieces = sum(bool(streamed_text([chunk])) for chunk in found)
    require(pieces > 1, f"{pieces} chunk with text for 48 tokens")
    return f"{pieces} pieces"


def form(answer: Answer) -> None:
    problems = answer.ok().stream().chat_problems
    require(not problems, "; ".join(problems))


def no_empty_choices(found: Chunks) -> None:
    for chunk in found:
        require(chunk.choices, f"a chunk without choices: {chunk}")
        require(chunk.usage is None, f"usage before the last chunk, or unasked for: {chunk}")


def usage_chunk(found: Chunks) -> str:
    *others, last = found
    require(last.choices == [], f"the last chunk has choices: {last}")
    require(last.num_tokens == 3, f"{last.num_tokens} tokens in usage, not 3")
    no_empty_choices(others)
    return f"{last.num_prompt} + 3 tokens"


async def stop_string(server: Server) -> str:
    before = streamed_text((await server.chat(SUM, max_tokens=48, stream=True)).chunks())
    stop = before[len(before) // 2 :][:6]
    answer = await server.chat(SUM, max_tokens=48, stream=True, stop=[stop])
    text = streamed_text(answer.chunks())
    require(text == before.split(stop)[0], f"{text!r} is not {before!r} up to {stop!r}")
    return f"stop {stop!r}"


def _of_chunks(judge: Callable[[Chunks], str | None]) -> Judge:
    return lambda answer: judge(answer.chunks())


_STREAMED = chat(stream=True, max_tokens=48)
_WITH_USAGE = chat(stream=True, max_tokens=3, stream_options={"include_usage": True})

CHECKS = (
    Check("a stream's chunks have their shape", _STREAMED, shape),
    Check("the first chunk carries the role", _STREAMED, _of_chunks(role_first)),
    Check("one finish reason, in the last chunk", _STREAMED, _of_chunks(one_finish_reason)),
    recommended("the stream says what the whole answer says", same_text),
    Check("text comes while it is generated", _STREAMED, _of_chunks(in_pieces)),
    Check("only data lines, [DONE] last", _STREAMED, form, SSE),
    Check(
        "no empty choices unless usage is asked for",
        _STREAMED,
        _of_chunks(no_empty_choices),
        CLIENTS,
    ),
    Check("include_usage gives usage in the last chunk", _WITH_USAGE, _of_chunks(usage_chunk)),
    Check("a stop string never shows in a stream", stop_string),
    Check(
        "no <think> in a stream",
        chat(stream=True, max_tokens=256),
        _of_chunks(lambda found: no_think(streamed_text(found))),
        CLIENTS,
    ),
)
