"""``python -m bench.same_text``: do different set-ups give the same greedy text, token for token?

    python -m bench.same_text --setup split:1+3 --setup both:4 --device cuda

Each set-up is started here and asked the same prompts twice: one at a time (alone), and many at
once (load). Every text is compared with the first set-up's text of the same request alone. Where
two texts part, the reason is looked for in the log probabilities: if the two best tokens were
closer than ``--tie`` there, rounding in another order decides (a batch of another size sums in
another order); anything else is unexplained.

JSON on stdout. Exit code: 0; 1 when a request alone differs or a difference is unexplained; 2 could
not measure.
"""

import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from tokenizers import Tokenizer

from bench import environment, stack
from bench.interference import setup_arguments

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Text:
    """One answer. ``margins`` says of each position how much likelier its best token was than
    the second best, in nats."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """Where two texts part: ``margin`` is the smaller of both sides' there."""

    request: int
    position: int
    margin: float

    def reason(self, tie: float) -> str:
        return "near tie" if self.margin < tie else "unexplained"


def first_difference(request: int, one: Text, other: Text) -> Difference | None:
    """None where both say the same."""
    if one.token_ids == other.token_ids:
        return None
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:  # one is the beginning of the other, which no rounding explains
        return Difference(request, min(len(one.token_ids), len(other.token_ids)), float("inf"))
    return Difference(request, at, min(one.margins[at], other.margins[at]))


def compare(truth: Sequence[Text], texts: Sequence[Text], tie: float) -> dict[str, Any]:
    """The share of requests that differ, and each difference with its reason."""
    found = [first_difference(i, a, b) for i, (a, b) in enumerate(zip(truth, texts, strict=True))]
    differences = [difference for difference in found if difference is not None]
    return {
        "requests": len(texts),
        "different": len(differences),
        "share": len(differences) / len(texts),
        "unexplained": sum(d.reason(tie) == "unexplained" for d in differences),
        "differences": [
            {
                "request": d.request,
                "position": d.position,
                "margin_nats": None if d.margin == float("inf") else d.margin,
                "reason": d.reason(tie),
            }
            for d in differences
        ],
    }


def text_of(choice: Mapping[str, Any]) -> Text:
    """From a choice of /v1/completions with ``logprobs`` and ``return_token_ids``."""
    margins = []
    for top in choice["logprobs"]["top_logprobs"]:
        best = sorted(top.values(), reverse=True)
        margins.append(best[0] - best[1] if len(best) > 1 else 0.0)  # two ids of one text
    return Text(tuple(choice["token_ids"]), tuple(margins))


async def ask(
    url: str, prompts: Sequence[Sequence[int]], max_tokens: int, concurrency: int
) -> list[Text]:
    """The greedy texts of ``prompts``, ``concurrency`` at a time. Raises httpx.HTTPError."""
    limits = httpx.Limits(max_connections=concurrency)
    room = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:

        async def one(prompt: Sequence[int]) -> Text:
            body = {
                "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0,
                "ignore_eos": True, "logprobs": 2, "return_token_ids": True,
            }  # fmt: skip
            async with room:
                answer = await http.post("/v1/completions", json=body)
            answer.raise_for_status()
            return text_of(answer.json()["choices"][0])

        return list(await asyncio.gather(*map(one, prompts)))


def main(
    setup: Annotated[list[str], typer.Option(help="split:P+D or both:N; the first is the truth.")],
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    requests: Annotated[int, typer.Option(help="Prompts, of random ids.")] = 64,
    min_prompt: Annotated[int, typer.Option(help="Tokens of the shortest.")] = 1,
    max_prompt: Annotated[int, typer.Option(help="Tokens of the longest.")] = 1024,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 256,
    concurrency: Annotated[int, typer.Option(help="Requests at once under load.")] = 64,
    tie: Annotated[float, typer.Option(help="Two best tokens closer than this are a tie.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the result there.")] = None,
) -> None:
    """Compare the greedy texts of set-ups that serve the same weights."""
    try:
        ids = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
        draw = random.Random(seed)
        prompts = [
            [draw.randrange(ids) for _ in range(draw.randint(min_prompt, max_prompt))]
            for _ in range(requests)
        ]
        truth: list[Text] = []
        results: dict[str, Any] = {}
        for each in setup:
            arguments = [*setup_arguments(each), "--load-format", load_format]
            with stack.running(model, *arguments, device=device) as served:
                alone = asyncio.run(ask(served.url, prompts, max_tokens, 1))
                load = asyncio.run(ask(served.url, prompts, max_tokens, concurrency))
            truth = truth or alone
            results[each] = {
                "alone": compare(truth, alone, tie),
                "load": compare(truth, load, tie),
            }
    except (ValueError, httpx.HTTPError, stack.StackFailed, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    document = {
        "kind": "same_text",
        "environment": environment.describe(sys.argv[1:], "bench.same_text"),
        "tie_nats": tie,
        "results": results,
    }
    text = json.dumps(document, indent=1)
    if out is not None:
        out.write_text(text + "\n")
    typer.echo(text)
    wrong = [r for r in results.values() if r["alone"]["different"] or r["load"]["unexplained"]]
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
