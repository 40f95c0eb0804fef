"""Checks: many at once, and clients that leave."""

import asyncio
import json
import time

from bench.conformance.check import Need, NotOffered, Source, Suite, require
from bench.conformance.questions import OTHERS, SUM
from bench.conformance.reading import chat_text, chunks, ok, streamed_text
from bench.conformance.server import CHAT, Server
from bench.prometheus import total

CROWD = Suite()

AT_ONCE = 64
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "baton_requests_running")
_FREE_WITHIN_S = 10.0
_ASK_S = 0.1


@CROWD.check("64 at once, none lost, none mixed up", Need.REQUIRED, Source.CLIENTS)
async def at_once(server: Server) -> str:
    questions = [OTHERS.format(number) for number in range(2, 2 + AT_ONCE)]
    answers = await asyncio.gather(*(server.chat(q, max_tokens=24, stream=True) for q in questions))
    problems = [problem for answer in answers for problem in answer.events().problems]
    require(not problems, "; ".join(problems[:3]))
    texts = [streamed_text(chunks(answer)) for answer in answers]
    ids = {chunk["id"] for answer in answers for chunk in chunks(answer)}
    require(len(ids) == AT_ONCE, f"{len(ids)} ids in {AT_ONCE} streams")
    require(all(texts), f"{texts.count('')} of {AT_ONCE} answers are empty")
    again = [streamed_text(chunks(await server.chat(q, max_tokens=24, stream=True)))
             for q in questions[:8]]  # fmt: skip
    same = sum(a == b for a, b in zip(texts, again, strict=False))
    return f"{same} of 8 as the same question alone"


@CROWD.check("a client that leaves harms nobody", Need.REQUIRED, Source.CLIENTS)
async def leaving(server: Server) -> str:
    await _leave(server, clients=8)
    chat_text(ok(await server.chat(SUM, max_tokens=8)))
    return ""


@CROWD.check("what a client left behind is ended", Need.RECOMMENDED, Source.CLIENTS)
async def cancelled(server: Server) -> str:
    before = await _running(server)
    await _leave(server, clients=8)
    deadline = time.monotonic() + _FREE_WITHIN_S
    while True:
        now = await _running(server)
        if now <= before:
            return ""
        late = time.monotonic() >= deadline
        require(not late, f"{now:g} still running {_FREE_WITHIN_S:g} s after their clients left")
        await asyncio.sleep(_ASK_S)  # a gauge can only be asked


async def _leave(server: Server, clients: int) -> None:
    """Start long streams and close their connections once they are under way."""
    body = {
        "model": server.model, "stream": True, "max_tokens": 400, "temperature": 1,
        "messages": [{"role": "user", "content": SUM}], "ignore_eos": True,
    }  # fmt: skip
    content = json.dumps(body).encode()
    tasks = [
        asyncio.create_task(server.client.request("POST", CHAT, content)) for _ in range(clients)
    ]
    await asyncio.wait(tasks, timeout=0.5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _running(server: Server) -> float:
    answer = await server.get("/metrics")
    found = total(answer.body.decode(errors="replace"), _RUNNING) if answer.status == 200 else None
    if found is None:
        raise NotOffered("no gauge of running requests at /metrics")
    return found
