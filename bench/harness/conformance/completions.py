"""Checks: /v1/completions."""

from collections.abc import Callable
from typing import Literal

from bench.harness.conformance.check import CLIENTS, TEXT, Check, complete, one
from bench.harness.conformance.server import Answer, Completion, Server, require, streamed_text

_IDS = [[40, 41, 42, 43, 44], [50, 51, 52]]  # low ids: in every vocabulary, special in none known


class Whole(Completion, kw_only=True):
    """All that a completion must have."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str


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


async def stream(server: Server) -> str:
    answer = await server.complete(TEXT, stream=True, max_tokens=8)
    found, problems = answer.chunks(), answer.events().problems
    require(not problems, "; ".join(problems))
    require(found[0].choice.text, f"the first chunk is {found[0]}")
    whole = (await server.complete(TEXT, max_tokens=8)).completion().text
    same = streamed_text(found) == whole
    return "" if same else "the text differs from the one in one piece"


CHECKS = (
    Check("a completion has its shape", one(complete(TEXT, max_tokens=4), shape)),
    Check("prompt: a list of strings", strings),
    Check("prompt: token ids", one(complete(_IDS[0], max_tokens=2), counted(1, 5)), CLIENTS),
    Check(
        "prompt: a list of token-id lists",
        one(complete(_IDS, max_tokens=2), counted(2, 8)),
        CLIENTS,
    ),
    Check(
        "echo gives the prompt back",
        one(complete(TEXT, max_tokens=2, echo=True), echo),
        required=False,
    ),
    Check(
        "logprobs: a list for each token",
        one(complete(TEXT, max_tokens=3, logprobs=2), logprobs),
        required=False,
    ),
    Check(
        "echo with logprobs of the prompt",
        one(complete([_IDS[0]], max_tokens=1, echo=True, logprobs=1), prompt_logprobs),
        CLIENTS,
        required=False,
    ),
    Check("a streamed completion never starts empty", stream, CLIENTS),
)
