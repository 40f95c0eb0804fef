"""Checks: /v1/chat/completions in one piece."""

from collections.abc import Callable
from typing import Literal

import msgspec

from bench.harness.conformance.check import CLIENTS, SUM, Check, chat, messages, recommended
from bench.harness.conformance.server import Answer, Completion, Server, require

_PARTS = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "who are you?"}]
_MESSAGES = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": _PARTS},
]


class Whole(Completion, kw_only=True):
    """All that a chat completion must have."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str


class Scored(msgspec.Struct):
    """A token, or an alternative to one."""

    logprob: float
    bytes: list[int] | None = None
    top_logprobs: "list[Scored]" = []


def shape(answer: Answer) -> str:
    value = answer.ok().read(Whole)
    require(value.text, "the answer is empty")
    require(value.choice.index == 0, f"index is {value.choice.index}")
    require(value.num_prompt > 0 and value.num_tokens > 0, f"usage is {value.usage}")
    return f"{value.num_prompt} + {value.num_tokens} tokens"


def has_text(answer: Answer) -> None:
    assert answer.completion().text is not None


def no_think(text: str) -> None:
    for tag in ("<think>", "</think>"):
        require(tag not in text, f"{tag} in {text[:200]!r}")


def ends(wanted: str, num_tokens: int | None = None) -> Callable[[Answer], None]:
    """A judge: the answer has finish reason ``wanted``, and ``num_tokens`` tokens if given."""

    def judge(answer: Answer) -> None:
        value = answer.completion()
        reason, count = value.choice.finish_reason, value.num_tokens
        require(reason == wanted, f"finish_reason is {reason!r} after {count} tokens")
        require(num_tokens in (None, count), f"{count} tokens, not {num_tokens}")

    return judge


def two_choices(answer: Answer) -> None:
    indices = [one.index for one in answer.completion(optional=True).choices]
    require(indices == [0, 1], f"the indices are {indices}")


def logprobs(answer: Answer) -> None:
    value = answer.completion(optional=True)
    found = msgspec.convert((value.choice.logprobs or {}).get("content"), list[Scored])
    require(len(found) == value.num_tokens, f"{len(found)} entries for {value.num_tokens} tokens")
    for entry in found:
        top = [one.logprob for one in entry.top_logprobs]
        require(entry.logprob <= 0, f"a log probability of {entry.logprob}")
        require(len(top) == 2, f"{len(top)} top_logprobs, not 2")
        require(top[0] >= top[1], f"top_logprobs is not sorted: {top}")
    text = b"".join(bytes(entry.bytes or b"") for entry in found).decode(errors="replace")
    require(text.startswith(value.text), f"the bytes say {text!r}")


async def stop_string(server: Server) -> str:
    before = (await server.chat(SUM, max_tokens=48)).completion().text
    stop = before[len(before) // 2 : len(before) // 2 + 4]
    require(stop.strip(), f"the answer is too short to cut: {before!r}")
    for given in (stop, ["\u2603 never said \u2603", stop]):
        value = (await server.chat(SUM, max_tokens=48, stop=given)).completion()
        require(stop not in value.text, f"stop {given!r} is in {value.text!r}")
        cut, reason = before.split(stop)[0], value.choice.finish_reason
        require(value.text == cut, f"{value.text!r} is not {before!r} up to {stop!r}")
        require(reason == "stop", f"finish_reason is {reason!r}")
    return f"stop {stop!r}"


async def seed(server: Server) -> str:
    numbers = (11, 11, 12, 13, 14)
    answers = [await server.chat(SUM, max_tokens=32, temperature=2, seed=n) for n in numbers]
    first, again, *others = [answer.completion(optional=True).text for answer in answers]
    require(first == again, f"seed 11 gave {first!r} and {again!r}")
    return "" if set(others) != {first} else "other seeds gave the same text"


CHECKS = (
    Check("a chat completion has its shape", chat(max_tokens=256), shape),
    Check(
        "no <think> in the answer",
        chat(max_tokens=256),
        lambda answer: no_think(answer.completion().text),
        CLIENTS,
    ),
    recommended("an answer that is complete ends with stop", chat(max_tokens=1024), ends("stop")),
    Check("max_tokens ends with length, to the token", chat(max_tokens=3), ends("length", 3)),
    Check("max_completion_tokens does the same", chat(max_completion_tokens=3), ends("length", 3)),
    Check("a stop string ends the text before it", stop_string),
    recommended("n = 2 gives two choices", chat(max_tokens=16, n=2, temperature=1), two_choices),
    recommended("the same seed gives the same text", seed),
    recommended(
        "logprobs: each token with its top two",
        chat(max_tokens=12, logprobs=True, top_logprobs=2),
        logprobs,
    ),
    Check(
        "content may be a list of text parts", messages(messages=_MESSAGES, max_tokens=8), has_text
    ),
    recommended(
        "unknown fields are ignored",
        chat(max_tokens=1, some_future_field={"a": 1}, user="conformance"),
        has_text,
        CLIENTS,
    ),
)
