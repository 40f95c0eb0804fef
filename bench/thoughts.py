"""``python -m bench.thoughts --url URL``: prefix hits of a conversation with thoughts.

It is held twice: the chat template drops the thoughts of earlier turns, and it preserves them.
Each turn sends the whole conversation, with the thoughts as clients send them back
(``reasoning_content``). Only ``chat_template_kwargs.preserve_thinking`` differs; a salt keeps the
two conversations apart.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import httpx
import typer

from bench import result_file
from bench.environment import describe

HELD_OUT = Path(__file__).resolve().parents[1] / "models" / "heldout.jsonl"
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Turn:
    """Tokens of one turn. ``cached_tokens`` are a part of the prompt, ``thought_tokens`` of the
    output."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    thought_tokens: int


def converse(url: str, questions: list[str], *, preserve: bool, max_tokens: int) -> Iterator[Turn]:
    """Ask ``questions`` one after the other in one conversation. Raises httpx.HTTPError."""
    messages: list[dict[str, Any]] = []
    salt = token_hex(8)
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        for question in questions:
            messages.append({"role": "user", "content": question})
            variables = {"enable_thinking": True, "preserve_thinking": preserve}
            body = {
                "messages": messages, "max_tokens": max_tokens, "temperature": 0,
                "chat_template_kwargs": variables, "cache_salt": salt,
            }  # fmt: skip
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            said, usage = answer["choices"][0]["message"], answer["usage"]
            thought = {"reasoning_content": said.get("reasoning_content") or ""}
            messages.append({"role": "assistant", "content": said["content"] or "", **thought})
            yield Turn(
                usage["prompt_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"],
                usage["completion_tokens"],
                usage["completion_tokens_details"]["reasoning_tokens"],
            )


def summary(turns: list[Turn]) -> dict[str, Any]:
    """The hit rate by tokens from the second turn on, and the mean tokens that such a turn had to
    compute."""
    later = turns[1:]
    prompts, cached = (sum(getattr(t, f"{k}_tokens") for t in later) for k in ("prompt", "cached"))
    return {
        "hit_rate_later": cached / prompts,
        "computed_per_turn": (prompts - cached) / len(later),
        "turns": [asdict(turn) for turn in turns],
    }


def questions(num_turns: int, problems_each: int) -> list[str]:
    """Questions of some held-out problems each, so that a turn is long enough to be kept."""
    texts = [json.loads(line)["question"] for line in HELD_OUT.read_text().splitlines()]
    return [
        "\n\n".join(texts[n * problems_each : (n + 1) * problems_each]) for n in range(num_turns)
    ]


def main(
    url: Annotated[str, typer.Option(help="The server.")],
    out: Annotated[Path | None, typer.Option(help="Where the result goes, as JSON.")] = None,
    turns: Annotated[int, typer.Option(min=2)] = 8,
    problems: Annotated[int, typer.Option(min=1, help="Problems in each question.")] = 7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 400,
    think_s: Annotated[float, typer.Option(min=0, help="Pause before a turn.")] = 0.5,
) -> None:
    """Ask the same questions with thoughts dropped and preserved."""
    asked, found = questions(turns, problems), {}
    for name, preserve in (("dropped", False), ("preserved", True)):
        said = list[Turn]()
        for turn in converse(url, asked, preserve=preserve, max_tokens=max_tokens):
            said.append(turn)
            time.sleep(think_s)
        found[name] = summary(said)
    if out is not None:
        result_file.write(out, {"environment": describe(sys.argv[1:], "bench.thoughts"), **found})
    shown = {
        name: {key: value for key, value in each.items() if key != "turns"}
        for name, each in found.items()
    }
    typer.echo(result_file.one_line(shown))


if __name__ == "__main__":
    typer.run(main)
