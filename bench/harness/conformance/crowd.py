"""Checks: many at once, and clients that leave."""

import asyncio
import json
import time

from bench.harness.conformance.check import CLIENTS, SUM, Check, recommended
from bench.harness.conformance.server import CHAT, NotOffered, Server, require, streamed_text
from bench.prometheus import total

AT_ONCE = 64
_QUESTION = (
    "A cup costs $3 and a plant costs $7. Weng buys {0} cups and 2 plants. "
    "How much does she pay in total?"
)
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "baton_requests_running")
_FREE_WITHIN_S = 10.0
_ASK_S = 0.1


async def at_once(server: Server) -> str:
    questions = [_QUESTION.format(number) for number in range(2, 2 + AT_ONCE)]
    answers = await asyncio.gather(*(server.chat(q, max_tokens=24, stream=True) for q in questions))
    problems = [problem for answer in answers for problem in answer.stream().chat_problems]
    require(not problems, "; ".join(problems[:3]))
    texts = [streamed_text(answer.chunks()) for answer in answers]
    ids = {chunk.id for answer in answers for chunk in answer.chunks()}
    require(len(ids) == AT_ONCE, f"{len(ids)} ids in {AT_ONCE} streams")
    require(all(texts), f"{texts.count('')} of {AT_ONCE} answers are empty")
    alone = [await server.chat(q, max_tokens=24, stream=True) for q in questions[:8]]
    same = sum(a == streamed_text(b.chunks()) for a, b in zip(texts, alone, strict=False))
    return f"{same} of 8 as the same question alone"


async def leaving(server: Server) -> None:
    await _leave(server, clients=8)
    assert (await server.chat(SUM, max_tokens=8)).completion().text is not None


async def cancelled(server: Server) -> None:
    before = await _running(server)
    await _leave(server, clients=8)
    deadline = time.monotonic() + _FREE_WITHIN_S
    while (now := await _running(server)) > before:
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
    tasks = [asyncio.create_task(server.send(CHAT, content)) for _ in range(clients)]
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


CHECKS = (
    Check("64 at once, none lost, none mixed up", at_once, source=CLIENTS),
    Check("a client that leaves disturbs no other request", leaving, source=CLIENTS),
    recommended("what a client left behind is ended", cancelled, source=CLIENTS),
)
