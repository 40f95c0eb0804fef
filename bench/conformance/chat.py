"""Checks: /v1/chat/completions in one piece."""

from typing import Any

from bench.conformance.check import Need, Source, Suite, Violation, require
from bench.conformance.questions import SUM
from bench.conformance.reading import chat_text, choice, choices, offered, ok, usage
from bench.conformance.server import Server

CHAT_CHECKS = Suite()


@CHAT_CHECKS.check("a chat completion has its shape", Need.REQUIRED, Source.OPENAI)
async def shape(server: Server) -> str:
    value = ok(await server.chat(SUM, max_tokens=256))
    missing = {"id", "object", "created", "model", "choices", "usage"} - value.keys()
    require(not missing, f"lacks {sorted(missing)}")
    require(value["object"] == "chat.completion", f"object is {value['object']!r}")
    require(type(value["created"]) is int, f"created is {value['created']!r}")
    require(bool(chat_text(value)), "the answer is empty")
    require(choice(value).get("index") == 0, f"index is {choice(value).get('index')!r}")
    prompt, completion = usage(value)
    require(prompt > 0 and completion > 0, f"usage is {value['usage']!r}")
    return f"{prompt} + {completion} tokens"


@CHAT_CHECKS.check("no <think> in the answer", Need.REQUIRED, Source.CLIENTS)
async def no_think(server: Server) -> str:
    text = chat_text(ok(await server.chat(SUM, max_tokens=256)))
    for tag in ("<think>", "</think>"):
        require(tag not in text, f"{tag} in {text[:200]!r}")
    return ""


@CHAT_CHECKS.check("an answer that is complete ends with stop", Need.RECOMMENDED, Source.OPENAI)
async def ends_with_stop(server: Server) -> str:
    value = ok(await server.chat(SUM, max_tokens=1024))
    reason = choice(value).get("finish_reason")
    require(reason == "stop", f"finish_reason is {reason!r} after {usage(value)[1]} tokens")
    return ""


@CHAT_CHECKS.check("max_tokens ends with length, to the token", Need.REQUIRED, Source.OPENAI)
async def ends_with_length(server: Server) -> str:
    await _cut_at(server, "max_tokens")
    return ""


@CHAT_CHECKS.check("max_completion_tokens does the same", Need.REQUIRED, Source.OPENAI)
async def ends_with_completion_length(server: Server) -> str:
    await _cut_at(server, "max_completion_tokens")
    return ""


@CHAT_CHECKS.check("a stop string ends the text before it", Need.REQUIRED, Source.OPENAI)
async def stop_string(server: Server) -> str:
    before = chat_text(ok(await server.chat(SUM, max_tokens=48)))
    stop = _middle(before)
    for given in (stop, ["\u2603 never said \u2603", stop]):
        value = ok(await server.chat(SUM, max_tokens=48, stop=given))
        text = chat_text(value)
        require(stop not in text, f"stop {given!r} is in {text!r}")
        require(text == before.split(stop)[0], f"{text!r} is not {before!r} up to {stop!r}")
        reason = choice(value).get("finish_reason")
        require(reason == "stop", f"finish_reason is {reason!r}")
    return f"stop {stop!r}"


@CHAT_CHECKS.check("n = 2 gives two choices", Need.RECOMMENDED, Source.OPENAI)
async def two_choices(server: Server) -> str:
    value = offered(await server.chat(SUM, max_tokens=16, n=2, temperature=1))
    indices = [one.get("index") for one in choices(value)]
    require(indices == [0, 1], f"the indices are {indices}")
    return ""


@CHAT_CHECKS.check("the same seed gives the same text", Need.RECOMMENDED, Source.OPENAI)
async def seed(server: Server) -> str:
    async def ask(number: int) -> str:
        fields: dict[str, Any] = {"max_tokens": 32, "temperature": 2, "seed": number}
        return chat_text(offered(await server.chat(SUM, **fields)))

    first, again = await ask(11), await ask(11)
    require(first == again, f"seed 11 gave {first!r} and {again!r}")
    others = {await ask(number) for number in (12, 13, 14)}
    return "" if others != {first} else "other seeds gave the same text"


@CHAT_CHECKS.check("logprobs: each token with its top two", Need.RECOMMENDED, Source.OPENAI)
async def logprobs(server: Server) -> str:
    value = offered(await server.chat(SUM, max_tokens=12, logprobs=True, top_logprobs=2))
    found = (choice(value).get("logprobs") or {}).get("content")
    if not isinstance(found, list):
        raise Violation(f"logprobs.content is {found!r}")
    require(len(found) == usage(value)[1], f"{len(found)} entries for {usage(value)[1]} tokens")
    for entry in found:
        top = entry["top_logprobs"]
        require(entry["logprob"] <= 0, f"a log probability of {entry['logprob']}")
        require(len(top) == 2, f"{len(top)} top_logprobs, not 2")
        require(top[0]["logprob"] >= top[1]["logprob"], f"top_logprobs is not sorted: {top}")
    text = b"".join(bytes(entry["bytes"] or b"") for entry in found).decode(errors="replace")
    require(text.startswith(chat_text(value)), f"the bytes say {text!r}")
    return ""


@CHAT_CHECKS.check("content may be a list of text parts", Need.REQUIRED, Source.OPENAI)
async def parts(server: Server) -> str:
    content = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "who are you?"}]
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": content},
    ]
    value = ok(await server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8}))
    chat_text(value)
    return ""


@CHAT_CHECKS.check("fields that nobody knows are ignored", Need.RECOMMENDED, Source.CLIENTS)
async def unknown_fields(server: Server) -> str:
    ok(await server.chat(SUM, max_tokens=1, some_future_field={"a": 1}, user="conformance"))
    return ""


async def _cut_at(server: Server, field: str) -> None:
    value = ok(await server.chat(SUM, **{field: 3}))
    reason = choice(value).get("finish_reason")
    require(reason == "length", f"finish_reason is {reason!r}")
    require(usage(value)[1] == 3, f"{usage(value)[1]} tokens, not 3")


def _middle(text: str) -> str:
    """A piece of the text that is not at its beginning."""
    piece = text[len(text) // 2 : len(text) // 2 + 4]
    require(bool(piece.strip()), f"the answer is too short to cut: {text!r}")
    return piece
