"""Checks: /v1/completions."""

from typing import Any

from bench.conformance.check import Need, Source, Suite, Violation, require
from bench.conformance.questions import TEXT
from bench.conformance.reading import choice, choices, chunks, offered, ok, streamed_text, usage
from bench.conformance.server import COMPLETIONS, Server

COMPLETION_CHECKS = Suite()

_IDS = [[40, 41, 42, 43, 44], [50, 51, 52]]  # low ids: in every vocabulary, special in none known


def _texts(value: Any) -> list[str]:
    found = choices(value)
    texts = [one.get("text") for one in sorted(found, key=lambda one: one.get("index", -1))]
    if not all(isinstance(text, str) for text in texts):
        raise Violation(f"texts are {texts!r}")
    return texts


@COMPLETION_CHECKS.check("a completion has its shape", Need.REQUIRED, Source.OPENAI)
async def shape(server: Server) -> str:
    value = ok(await server.complete(TEXT, max_tokens=4))
    missing = {"id", "object", "created", "model", "choices", "usage"} - value.keys()
    require(not missing, f"lacks {sorted(missing)}")
    require(value["object"] == "text_completion", f"object is {value['object']!r}")
    require(usage(value)[1] <= 4, f"{usage(value)[1]} tokens, not 4")
    reason = choice(value).get("finish_reason")
    require(reason in ("stop", "length"), f"finish_reason is {reason!r}")
    return ""


@COMPLETION_CHECKS.check("prompt: a list of strings", Need.REQUIRED, Source.OPENAI)
async def strings(server: Server) -> str:
    alone = _texts(ok(await server.complete(TEXT, max_tokens=4)))
    both = _texts(ok(await server.complete([TEXT, "The sky is"], max_tokens=4)))
    require(len(both) == 2, f"{len(both)} choices for two prompts")
    return "" if both[0] == alone[0] else "the text differs from that of the prompt alone"


@COMPLETION_CHECKS.check("prompt: token ids", Need.REQUIRED, Source.CLIENTS)
async def ids(server: Server) -> str:
    value = ok(await server.complete(_IDS[0], max_tokens=2))
    require(usage(value)[0] == len(_IDS[0]), f"{usage(value)[0]} prompt tokens, not {len(_IDS[0])}")
    return ""


@COMPLETION_CHECKS.check("prompt: a list of token-id lists", Need.REQUIRED, Source.CLIENTS)
async def id_lists(server: Server) -> str:
    value = ok(await server.complete(_IDS, max_tokens=2))
    require(len(_texts(value)) == 2, f"{len(choices(value))} choices for two prompts")
    num_ids = sum(map(len, _IDS))
    require(usage(value)[0] == num_ids, f"{usage(value)[0]} prompt tokens, not {num_ids}")
    return ""


@COMPLETION_CHECKS.check("echo gives the prompt back", Need.RECOMMENDED, Source.OPENAI)
async def echo(server: Server) -> str:
    (text,) = _texts(offered(await server.complete(TEXT, max_tokens=2, echo=True)))
    require(text.startswith(TEXT), f"the text is {text!r}")
    return ""


@COMPLETION_CHECKS.check("logprobs: a list for each token", Need.RECOMMENDED, Source.OPENAI)
async def logprobs(server: Server) -> str:
    value = offered(await server.complete(TEXT, max_tokens=3, logprobs=2))
    found = choice(value).get("logprobs")
    if not isinstance(found, dict):
        raise Violation(f"logprobs is {found!r}")
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        require(len(found.get(key) or ()) == usage(value)[1], f"{key} is {found.get(key)!r}")
    return ""


@COMPLETION_CHECKS.check("echo with logprobs of the prompt", Need.RECOMMENDED, Source.CLIENTS)
async def prompt_logprobs(server: Server) -> str:
    answer = await server.complete([_IDS[0]], max_tokens=1, echo=True, logprobs=1)
    found = choice(offered(answer)).get("logprobs") or {}
    scores = found.get("token_logprobs") or []
    require(len(scores) == len(_IDS[0]) + 1, f"{len(scores)} scores for {len(_IDS[0])} + 1 tokens")
    require(scores[0] is None, f"the first token's score is {scores[0]!r}, not null")
    return ""


@COMPLETION_CHECKS.check("a streamed completion never starts empty", Need.REQUIRED, Source.CLIENTS)
async def stream(server: Server) -> str:
    body = {"prompt": TEXT, "stream": True, "max_tokens": 8, "temperature": 0}
    answer = await server.post(COMPLETIONS, body)
    found = chunks(answer)
    problems = answer.events().problems
    require(not problems, "; ".join(problems))
    require(bool(choice(found[0]).get("text")), f"the first chunk is {found[0]!r}")
    text = streamed_text(found, "text")
    (whole,) = _texts(ok(await server.complete(TEXT, max_tokens=8)))
    return "" if text == whole else "the text differs from the one in one piece"
