"""The measurements of the CPU benchmark; each takes a running stack and returns its figures."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.record import Record
from bench.harness.client.required import at_once, complete, get, one_by_one
from bench.measures import MS, columns_ms, growth, outside_model_s, paired_ratio
from bench.reference import Reference
from bench.stack import Stack

Prompts = Sequence[Sequence[int]]
Send = Callable[[str, Sequence[dict[str, Any]]], Coroutine[Any, Any, list[Record]]]
_NAMES = ("Nina", "Diana", "Hugo", "Weng", "Laura", "Ben", "Ahmed", "Rosa")
_THINGS = ("shells", "badges", "buttons", "pencils", "cups", "plants")


def prompts(model: Path, count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of ``count`` prompts of about 20 to 100 tokens, by the model's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    draw = random.Random(seed)
    return [tokenizer.encode(_question(draw), add_special_tokens=False).ids for _ in range(count)]


def _question(draw: random.Random) -> str:
    name, thing = draw.choice(_NAMES), draw.choice(_THINGS)
    parts = [f"{name} has {draw.randrange(10, 99)} {thing}."]
    for _ in range(draw.randrange(1, 6)):
        giver = draw.choice(_NAMES)
        parts.append(f"{giver} gives {name} {draw.randrange(2, 50)} of the {thing}.")
    parts.append(f"How many {thing} does {name} have now?")
    return " ".join(parts)


def bodies(prompts: Prompts, num_tokens: int, **more: Any) -> list[dict[str, Any]]:
    """Greedy requests that go on to exactly ``num_tokens`` tokens."""
    fixed = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, **more}
    return [{"prompt": list(prompt), **fixed} for prompt in prompts]


def throughput(
    stack: Stack,
    references: dict[int, Reference],
    prompts: Prompts,
    *,
    together: bool,
    num_tokens: int,
    num_rounds: int,
) -> dict[str, Any]:
    """Tokens per second compared with transformers, in turns; its better number of threads counts.

    ``together`` sends all prompts at once, to transformers as one batch; otherwise one by one. A
    number of threads that is less than half as fast in the warm-up is dropped.
    """
    send: Send = at_once if together else one_by_one
    batches = [prompts] if together else [[prompt] for prompt in prompts]
    requests = bodies(prompts, num_tokens)

    def theirs(reference: Reference) -> float:
        seconds = sum(reference.generate_s(batch, num_tokens) for batch in batches)
        return len(prompts) * num_tokens / seconds

    def ours() -> float:
        done = asyncio.run(send(stack.url, requests))
        seconds = max(c.done_at_s for c in done) - min(c.due_at_s for c in done)
        return sum(c.said_tokens or 0 for c in done) / seconds

    ours()
    for reference in references.values():
        reference.generate_s(batches[0], num_tokens)
    warm = {threads: theirs(reference) for threads, reference in references.items()}
    kept = [threads for threads in warm if 2 * warm[threads] >= max(warm.values())]
    rounds = [(ours(), {n: theirs(references[n]) for n in kept}) for _ in range(num_rounds)]
    baton = [own for own, _ in rounds]
    transformers = {n: [other[n] for _, other in rounds] for n in kept}
    best = max(kept, key=lambda n: median(transformers[n]))
    return {
        "requests": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "new_tokens_each": num_tokens,
        "baton_tokens_per_s": median(baton),
        "transformers_tokens_per_s": median(transformers[best]),
        "transformers_threads": best,
        "ratio": paired_ratio(baton, transformers[best]),
        "rounds": {
            "baton": baton,
            **{f"transformers, {n} threads": found for n, found in transformers.items()},
            "transformers, warm-up, by threads": warm,
        },
    }


OUTSIDE_MODEL = (
    "a request of 2 tokens, alone: time until its stream has ended, as the client sees it, less "
    "its prefill at the worker and its one decode step, both as its record at /v1/requests has "
    "them. What remains is HTTP, tokenizer, placement, messages, handoff and Redis"
)


def outside_model(stack: Stack, prompt: Sequence[int], *, num_requests: int) -> dict[str, Any]:
    """The time that a request spends outside the model; see ``OUTSIDE_MODEL``."""

    async def run() -> tuple[list[float], list[float], list[float]]:
        (short,) = bodies([prompt], 2)
        steps, totals, outside = [], [], []
        async with Client(endpoint(stack.url)) as client:
            for _ in range(num_requests):
                record = await complete(client, **short)
                timeline = await get(client, f"/v1/requests/{record.answer_id}")
                prefill_s, step_s = model_seconds(timeline)
                steps.append(step_s)
                totals.append(record.e2e_s)
                outside.append(outside_model_s(record.e2e_s, prefill_s, 1, step_s))
        return steps, totals, outside

    steps, totals, outside = asyncio.run(run())
    return {
        "definition": OUTSIDE_MODEL,
        "requests": num_requests,
        **columns_ms("", outside, "p50 p95"),
        **columns_ms("total", totals, "p50"),
        **columns_ms("decode_step", steps, "p50"),
    }


def streams(stack: Stack, prompts: Prompts, *, num_tokens: int) -> dict[str, Any]:
    """Send all prompts at once, and compare each stream with the same prompt alone."""
    requests = bodies(prompts, num_tokens, return_token_ids=True)
    alone = asyncio.run(one_by_one(stack.url, requests))
    cpu_before = stack.cpu_s()
    together = asyncio.run(at_once(stack.url, requests))
    cpu_s = {name: used - cpu_before[name] for name, used in stack.cpu_s().items()}
    seconds = max(c.done_at_s for c in together) - min(c.due_at_s for c in together)
    complete = [
        len(c.token_ids or ()) == num_tokens
        and c.finish_reason == "length"
        and c.usage is not None
        and c.usage.completion_tokens == num_tokens
        and c.usage.prompt_tokens == len(prompt)
        for c, prompt in zip(together, prompts, strict=True)
    ]
    same = [a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True)]
    itl = [gap for c in together for gap in c.itl_s]
    ttft = [c.ttft_s for c in together if c.ttft_s is not None]
    num_all = num_tokens * len(prompts)
    return {
        "streams": len(prompts),
        "new_tokens_each": num_tokens,
        "lost": complete.count(False),
        "different_from_alone": same.count(False),
        "tokens_per_s": num_all / seconds,
        **columns_ms("ttft", ttft, "p50 p99"),
        **columns_ms("itl", itl, "p50 p99"),
        "coordinator_us_per_token": 1e6 * cpu_s["coordinator"] / num_all,
    }


def memory(
    stack: Stack, prompts: Prompts, *, num_requests: int, sample_every: int, warm_up: int
) -> dict[str, Any]:
    """Resident memory of each service over many requests, 16 at a time."""
    seen: list[int] = []
    samples: dict[str, list[float]] = {name: [] for name in stack.memory_mib()}
    cpu_before = stack.cpu_s()
    for sent in range(0, num_requests, sample_every):
        part = [prompts[(sent + i) % len(prompts)] for i in range(sample_every)]
        requests = [body for i, p in enumerate(part) for body in bodies([p], 1 + i % 16)]
        done = asyncio.run(at_once(stack.url, requests, concurrency=16))
        assert len(done) == sample_every, "a request without an answer"
        seen.append(sent + sample_every)
        for name, mib in stack.memory_mib().items():
            samples[name].append(mib)
    cpu_s = {name: used - cpu_before[name] for name, used in stack.cpu_s().items()}
    grown = {name: growth(seen, mib, warm_up) for name, mib in samples.items()}
    return {
        "requests": num_requests,
        "warm_up_requests": warm_up,
        "services": {
            name: {
                "first_mib": g.first_mib,
                "last_mib": g.last_mib,
                "growth_mib": g.mib,
                "growth_share": g.share,
                "slope_mib_per_1000_requests": g.slope_mib_per_1000,
                "samples_mib": samples[name],
            }
            for name, g in grown.items()
        },
        "worst_growth_share": max(g.share for g in grown.values()),
        "coordinator_ms_per_request": MS * cpu_s["coordinator"] / num_requests,
    }


def model_seconds(timeline: str) -> tuple[float, float]:
    """Seconds of prefill and of the first decode step at the workers, from the JSON of one
    /v1/requests/{id} that was handed off."""
    parts = {stage["name"]: stage["parts"] for stage in json.loads(timeline)["stages"]}
    return parts["prefill"]["compute"], parts["handoff"]["first_step"]
