"""A serving core that says what a test tells it to say."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from coordinator.core.contract import (
    GenerationFailed,
    LoadPoint,
    LoadSeries,
    Overloaded,
    PoolChange,
    SequenceRequest,
    ServiceStatus,
    Token,
    WorkerStatus,
)
from transport.wire.reports import LogprobsOut

Says = Callable[..., "FakeCore"]
ClientOf = Callable[..., httpx.AsyncClient]
Script = Callable[[SequenceRequest], Sequence[int]]


def prompt_rows(spec: SequenceRequest) -> tuple[bytes, ...]:
    """In two pieces: the token at position p has the logprob -p / 4 and the rank p, and in its
    place the ids from 65 on have -1, -2 and so on."""
    num_top = spec.sampling.prompt_logprobs or 0
    rows = []
    for position in range(1, len(spec.prompt_ids)):
        best = [65 + i for i in range(num_top)], [-1.0 - i for i in range(num_top)]
        rows.append(struct.pack("<fI", -position / 4, position))
        rows[-1] += struct.pack(f"<{num_top}I{num_top}f", *best[0], *best[1])
    half = len(rows) // 2
    return b"".join(rows[:half]), b"".join(rows[half:])


@dataclass
class FakeStream:
    """Tokens of a script, then the end that StopRule gives. ``outcome`` is how it ended."""

    spec: SequenceRequest
    script: Sequence[int]
    failure: GenerationFailed | None
    gate: asyncio.Semaphore | None
    num_reused: int = 0
    outcome: str = ""
    num_sent: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> Token:
        if self.outcome:
            raise StopAsyncIteration
        if self.gate is not None:
            await self.gate.acquire()
        if self.num_sent == -1:
            self._end("finished")
            raise StopAsyncIteration
        if self.num_sent >= len(self.script):
            if self.failure is not None:
                self._end("failed")
                raise self.failure
            raise AssertionError("the script is shorter than max_tokens")
        token_id = self.script[self.num_sent]
        self.num_sent += 1
        num_reused = self.num_reused if self.num_sent == 1 else 0
        stop = self.spec.stop
        finish = stop.finish_reason(num_output=self.num_sent, token_id=token_id)
        logprobs = None
        if (top := self.spec.sampling.logprobs) is not None:
            pairs = [(token_id + i, -0.5 - i) for i in range(top)]
            logprobs = LogprobsOut(-0.5, tuple(pairs))
        if finish:
            self.num_sent, sent = -1, self.num_sent
            self.total = sent
        first = self.num_sent in (1, -1) and self.spec.sampling.prompt_logprobs is not None
        rows = prompt_rows(self.spec) if first else ()
        return Token(token_id, logprobs, finish, rows, num_reused)

    def stop_early(self) -> None:
        if not self.outcome:
            self._end("stopped")

    def cancel(self) -> None:
        if not self.outcome:
            self._end("cancelled")

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.ended.set()


@dataclass
class FakeCore:
    """``script`` gives a request's tokens; ``gate`` lets them out one by one; ``accept`` is
    how many are accepted before Overloaded; ``failure`` comes when the script is over; ``reused``
    gives how many tokens of a prompt were not computed."""

    script: Script
    max_seq_len: int | None = 512
    max_open_tokens: int = 10**6
    pools_follow: bool = False
    gate: asyncio.Semaphore | None = None
    accept: int = 10**9
    failure: GenerationFailed | None = None
    reused: Callable[[SequenceRequest], int] = lambda _: 0
    problems: tuple[str, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    streams: list[FakeStream] = field(default_factory=list)
    num_cut: int = 0
    load: tuple[LoadPoint, ...] = ()
    outputs: dict[str, int] = field(default_factory=dict)

    def submit(self, spec: SequenceRequest) -> FakeStream:
        if len(self.streams) >= self.accept:
            raise Overloaded("the queue is full", retry_after_s=2.5)
        ids = {stream.spec.request_id for stream in self.streams}
        assert spec.request_id not in ids, "an id was used twice"
        stream = FakeStream(spec, self.script(spec), self.failure, self.gate, self.reused(spec))
        self.streams.append(stream)
        return stream

    async def recorded(self, request_ids: Sequence[str]) -> None:
        pass

    def cut(self, request_ids: Sequence[str]) -> None:
        self.num_cut += len(request_ids)

    def status(self) -> ServiceStatus:
        return ServiceStatus(not self.problems, self.problems, False, 0, 0, True, self.workers)

    async def set_pools(self, prefill: int, decode: int) -> PoolChange:
        if prefill + decode != len(self.workers):
            raise ValueError(f"pools: {prefill + decode} workers are asked for")
        roles = {worker.instance: worker.role for worker in self.workers}
        return PoolChange(prefill, decode, roles, {}, 0, 0)

    def load_series(self) -> LoadSeries:
        return LoadSeries(10, 1_700_000_000.0, self.load)

    def num_output(self, request_id: str) -> int | None:
        return self.outputs.get(request_id)

    @property
    def outcomes(self) -> list[str]:
        return [stream.outcome for stream in self.streams]
