"""How long streams stand still when a worker that they run on, or beside which theirs computes its
steps, is killed (bench/spread_service.py)."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tokenizers import Tokenizer

from bench.harness.client.asking import Ask, completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.events import EventReader
from bench.harness.client.reading import num_ids
from bench.harness.client.record import Record
from bench.harness.client.required import RequestFailed, get
from bench.harness.server_info import ask_server
from bench.measures import longest_gap, percentile
from bench.stack import Stack

KILL_AFTER = 4
"""The worker is killed when the streams have this part of all their tokens together: a quarter."""


class _Progress:
    """Counts the tokens of streams while they run."""

    def __init__(self, num_tokens: int) -> None:
        self.reached = asyncio.Event()
        """Set once the streams have ``num_tokens`` together."""
        self._missing = num_tokens

    def stream(self) -> Callable[[bytes], None]:
        """A function that counts the tokens in the pieces of one stream's body."""
        reader = EventReader()

        def take(piece: bytes) -> None:
            self._missing -= sum(num_ids(event.data) for event in reader.feed(0.0, piece))
            if self._missing <= 0:
                self.reached.set()

        return take


def longest_gaps(
    served: Stack, model: Path, num_streams: int, input_len: int, output_len: int
) -> dict[str, Any]:
    """Run ``num_streams`` at once, kill a worker that decodes once they have a quarter of their
    tokens, and return the longest gap between two tokens in seconds: the median and the most of the
    streams whose worker was killed, and of the others. ``lost``: streams that did not get all their
    tokens. ``killed_resumed_s``: seconds from the kill to the end of that gap, of each stream whose
    worker was killed. Raises RequestFailed."""
    return asyncio.run(_run(served, model, num_streams, input_len, output_len))


async def _run(
    served: Stack, model: Path, num_streams: int, input_len: int, output_len: int
) -> dict[str, Any]:
    draw = random.Random(num_streams)
    vocab = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
    highest_id = min(100_000, vocab)
    async with Client(endpoint(served.url)) as client:
        name = (await ask_server(client, None)).model

        def ask() -> Ask:
            prompt = [draw.randrange(1_000, highest_id) for _ in range(input_len)]
            fields = {"temperature": 1, "top_p": 1.0, "top_k": 0, "return_token_ids": True}
            return completion(name, prompt, max_tokens=output_len, ignore_eos=True, **fields)

        victim = next(each for each in sorted(served.pids()) if not each.startswith("coord"))
        progress = _Progress(num_streams * output_len // KILL_AFTER)
        streams = [
            asyncio.create_task(client.send(ask(), on_body=progress.stream()))
            for _ in range(num_streams)
        ]
        reached = asyncio.create_task(progress.reached.wait())
        await asyncio.wait([reached, *streams], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if ended := next((stream for stream in streams if stream.done()), None):
            raise RequestFailed(f"before the kill: {ended.result().detail or 'a stream has ended'}")
        killed_at = perf_counter()
        served.kill(victim)
        records = await asyncio.gather(*streams)
        retried = [await _was_retried(client, record) for record in records]
    gaps: dict[str, list[float]] = {"killed": [], "others": []}
    resumed: list[float] = []
    for record, again in zip(records, retried, strict=True):
        gap_s, ended_at = longest_gap([each.at_s for each in record.arrivals], killed_at)
        gaps["killed" if again else "others"].append(gap_s)
        if again and record.ok:
            resumed.append(round(ended_at - killed_at, 3))
    return {
        "streams": num_streams, "victim": victim, "lost": sum(not each.ok for each in records),
        **{
            f"{kind}_{what}_s": round(percentile(found, share), 3) if found else None
            for kind, found in gaps.items()
            for what, share in (("p50", 0.5), ("max", 1.0))
        },
        "num_killed": len(gaps["killed"]),
        "killed_resumed_s": sorted(resumed),
    }  # fmt: skip


async def _was_retried(client: Client, record: Record) -> bool:
    """True if the request's worker was lost."""
    found = json.loads(await get(client, f"/v1/requests/{record.answer_id}"))
    return int(found["attempts"]) > 1
