"""Checks: /v1/completions."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from bench.harness.conformance.check import CLIENTS, TEXT, VLLM, Check, complete, recommended
from bench.harness.conformance.server import (
    Answer,
    Completion,
    NotOffered,
    Server,
    require,
    streamed_text,
)

_IDS = [[40, 41, 42, 43, 44], [50, 51, 52]]  # low ids: plain text in every known vocabulary


class Whole(Completion, kw_only=True):
    """All that a completion must have."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str


class ScoredChoice(msgspec.Struct):
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class Scored(msgspec.Struct):
    """vLLM's ``prompt_logprobs``: for each token of the prompt, entries by token id."""

    choices: list[ScoredChoice]


def shape(answer: Answer) -> None:
    value = answer.ok().read(Whole)
    require(value.num_tokens <= 4, f"{value.num_tokens} tokens, not 4")
    reason = value.choice.finish_reason
    require(reason in ("stop", "length"), f"finish_reason is {reason!r}")


async def strings(server: Server) -> str:
    alone = (await server.complete(TEXT, max_tokens=4)).completion().text
    both = (await server.complete([TEXT, "The sky is"], max_tokens=4)).completion().choices
    require(len(both) == 2, f"{len(both)} choices for two prompts")
    same = min(both, key=lambda one: one.index).text == alone
    return "" if same else "the text differs from that of the prompt alone"


def counted(num_choices: int, num_ids: int) -> Callable[[Answer], None]:
    def judge(answer: Answer) -> None:
        value = answer.completion()
        found = len(value.choices), value.num_prompt
        require(found == (num_choices, num_ids), f"{found[0]} choices, {found[1]} prompt tokens")

    return judge


def sixteen(answer: Answer) -> str:
    value = answer.completion()
    require(value.num_tokens <= 16, f"{value.num_tokens} tokens, not 16")
    return f"{value.num_tokens} tokens"


def echo(answer: Answer) -> None:
    text = answer.completion(optional=True).text
    require(text.startswith(TEXT), f"the text is {text!r}")


def logprobs(answer: Answer) -> None:
    value = answer.completion(optional=True)
    found = value.choice.logprobs or {}
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        require(len(found.get(key) or ()) == value.num_tokens, f"{key} is {found.get(key)!r}")


def prompt_logprobs(answer: Answer) -> None:
    scores = (answer.completion(optional=True).choice.logprobs or {}).get("token_logprobs") or []
    require(len(scores) == len(_IDS[0]) + 1, f"{len(scores)} scores for {len(_IDS[0])} + 1 tokens")
    require(scores[0] is None, f"the first token's score is {scores[0]!r}, not null")


def of_vllm(answer: Answer) -> None:
    choices = answer.ok(optional=True).read(Scored).choices
    if not choices or choices[0].prompt_logprobs is None:
        raise NotOffered("no prompt_logprobs in the choice")
    first, *others = choices[0].prompt_logprobs
    found = len(others) + 1
    require(found == len(_IDS[0]), f"{found} entries for {len(_IDS[0])} tokens")
    require(first is None, f"the first token has {first!r}, not null")
    for token, entry in zip(_IDS[0][1:], others, strict=True):
        require(entry and str(token) in entry, f"no entry of token {token} in {entry!r}")


def only_prompt(answer: Answer) -> None:
    value = answer.completion(optional=True)
    require(value.num_tokens == 0, f"{value.num_tokens} tokens, not 0")
    scores = (value.choice.logprobs or {}).get("token_logprobs") or []
    require(len(scores) == len(_IDS[0]), f"{len(scores)} scores for {len(_IDS[0])} tokens")


async def stream(server: Server) -> str:
    answer = await server.complete(TEXT, stream=True, max_tokens=8)
    found, problems = answer.chunks(), answer.stream().chat_problems
    require(not problems, "; ".join(problems))
    require(found[0].choice.text, f"the first chunk is {found[0]}")
    whole = (await server.complete(TEXT, max_tokens=8)).completion().text
    same = streamed_text(found) == whole
    return "" if same else "the text differs from the one in one piece"


CHECKS = (
    Check("a completion has its shape", complete(TEXT, max_tokens=4), shape),
    recommended("16 tokens without max_tokens", complete(TEXT), sixteen),
    Check("prompt: a list of strings", strings),
    Check("prompt: token ids", complete(_IDS[0], max_tokens=2), counted(1, 5), CLIENTS),
    Check("prompt: a list of token-id lists", complete(_IDS, max_tokens=2), counted(2, 8), CLIENTS),
    recommended("echo gives the prompt back", complete(TEXT, max_tokens=2, echo=True), echo),
    recommended(
        "logprobs: a list for each token", complete(TEXT, max_tokens=3, logprobs=2), logprobs
    ),
    recommended(
        "echo with logprobs of the prompt",
        complete([_IDS[0]], max_tokens=1, echo=True, logprobs=1),
        prompt_logprobs,
        CLIENTS,
    ),
    recommended(
        "echo, logprobs and max_tokens 0: the prompt alone",
        complete([_IDS[0]], max_tokens=0, echo=True, logprobs=1),
        only_prompt,
        CLIENTS,
    ),
    recommended(
        "prompt_logprobs", complete([_IDS[0]], max_tokens=1, prompt_logprobs=1), of_vllm, VLLM
    ),
    Check("a streamed completion never starts empty", stream, source=CLIENTS),
)
