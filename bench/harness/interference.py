"""The pace of running streams while long prompts arrive: the reason to disaggregate, as a number.

A server is measured twice: with steady streams alone (quiet), and with the same streams while long
prompts arrive at a fixed rate (disturbed). The figures are for the time in which all streams run:
the gaps between tokens in all of it, the gaps while a long prompt waited for its first token, and
the TTFT of the long prompts. As a warm-up, the streams and one long prompt run once before.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

from typer import Option

from bench.harness.client.asking import Ask, completion
from bench.harness.client.record import Record
from bench.harness.conduct import Session
from bench.harness.figures.token_gaps import NotMeasured, figures
from bench.harness.options import CountedTarget, Settings
from bench.harness.server_info import find_tokens
from bench.harness.workload.tokens import Tokens


@dataclass(frozen=True)
class InterferenceSettings(Settings):
    """Lengths are in tokens."""

    kind = "interference"
    num_streams: Annotated[int, Option(help="Streams that run all the time.")] = 32
    stream_prompt: Annotated[int, Option(help="Tokens of their prompts.")] = 1024
    stream_tokens: Annotated[int, Option(help="Tokens of their answers.")] = 1024
    num_arrivals: Annotated[int, Option(help="Long prompts, at most.")] = 40
    arrival_prompt: Annotated[int, Option(help="Tokens of each.")] = 8192
    arrival_tokens: Annotated[int, Option(help="Tokens of their answers.")] = 1
    every_s: Annotated[float, Option(help="Seconds from one to the next.")] = 0.25
    seed: Annotated[int, Option(help="Of the prompts.")] = 0
    setup: Annotated[str, Option(help="What the result calls the server.")] = "server"

    def __post_init__(self) -> None:
        self.require_above_0(
            "num_streams", "stream_prompt", "stream_tokens", "num_arrivals", "arrival_prompt",
            "arrival_tokens", "every_s",
        )  # fmt: skip


@dataclass(frozen=True)
class Interference:
    """The result; ``found``: the ``figures`` of both phases."""

    setup: str
    found: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return {self.setup: self.found}

    def headline(self) -> dict[str, Any]:
        phases = ("quiet", "disturbed", "beside_a_prompt")
        return {phase: self.found[phase].get("itl_p99_ms") for phase in phases}

    def problems(self) -> list[str]:
        arrivals = self.found["arrivals"]
        none = "no long prompt came and had its first token while all streams ran"
        return [*arrivals["failed"], *([] if arrivals["within_steady"] else [none])]


async def interference(
    settings: InterferenceSettings, target: CountedTarget, session: Session
) -> Interference:
    """Gaps between the tokens of running streams, alone and while long prompts arrive.

    Exit status: 0, 1 when a long prompt failed or none came while all streams ran, 2 when nothing
    could be measured, 130 interrupted.
    """
    tokens = await find_tokens(session.aside, session.server, target.tokenizer, target.vocab_size)
    return Interference(settings.setup, await measure(settings, tokens, session))


async def measure(
    settings: InterferenceSettings, tokens: Tokens, session: Session
) -> dict[str, Any]:
    """The figures of both phases. Raises NotMeasured."""
    load = _Load(settings, tokens, session)
    # Warm-up: the streams, and a long prompt beside them.
    (long,) = load.arrivals("warm-up", 1)
    streams, record = await asyncio.gather(load.streams("1"), session.client.send(long))
    _whole([*streams, record])
    quiet = _whole(await load.streams("2"))
    running = asyncio.create_task(load.streams("2"))
    arrivals = await load.arrive(running)
    return figures(quiet, _whole(await running), arrivals)


@dataclass(frozen=True)
class _Load:
    settings: InterferenceSettings
    tokens: Tokens
    session: Session

    async def streams(self, seed: str) -> list[Record]:
        """Run the streams, which are the same for the same seed."""
        given = self.settings
        asks = self._asks(seed, given.num_streams, given.stream_prompt, given.stream_tokens)
        return await asyncio.gather(*map(self.session.client.send, asks))

    def arrivals(self, seed: str, count: int) -> list[Ask]:
        """The requests with long prompts."""
        return self._asks(seed, count, self.settings.arrival_prompt, self.settings.arrival_tokens)

    async def arrive(self, streams: "asyncio.Task[list[Record]]") -> list[Record]:
        """Send long prompts at their times while the streams run, and wait for their answers."""
        client, begin = self.session.client, perf_counter()
        sent: list[asyncio.Task[Record]] = []
        for number, ask in enumerate(self.arrivals("arrivals", self.settings.num_arrivals), 1):
            due_at_s = begin + number * self.settings.every_s
            await asyncio.wait({streams}, timeout=max(0.0, due_at_s - perf_counter()))
            if streams.done():
                break
            sent.append(asyncio.create_task(client.send(ask, due_at_s=due_at_s)))
        return list(await asyncio.gather(*sent))

    def _asks(self, seed: str, count: int, length: int, max_tokens: int) -> list[Ask]:
        draw = random.Random(f"{self.settings.seed} {seed}")
        fields = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 1}
        model = self.session.server.model
        return [completion(model, self.tokens.draw(draw, length), **fields) for _ in range(count)]


def _whole(streams: Sequence[Record]) -> Sequence[Record]:
    for record in streams:
        if not record.ok:
            raise NotMeasured(f"a request failed: {record.failure}: {record.detail}")
    return streams
