"""Clients that go on asking, as OpenAI's do: what is refused is asked again."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import uuid4

import httpx

from tests.e2e.problems import HELDOUT, final_number

NUM_LONG = 80
PAUSE_S = 0.3
"""After an answer, before a client asks again: containers start beside it, on the same cores."""
RETRY_S = 0.2
PATIENCE_S = 90.0
SILENCE_S = 20.0
"""Until a try counts as unanswered. While a container is replaced, Docker's proxy can accept a
connection that nobody will serve; one that the coordinator took is answered in a second or two."""
UNANSWERED = (
    httpx.ConnectError,
    httpx.ReadError,
    httpx.WriteError,
    httpx.RemoteProtocolError,
    httpx.TimeoutException,
)


@dataclass
class Try:
    """One request as its client saw it: ``finished``, ``refused`` with a 503, ``unanswered`` when
    the connection ended before a response began, or ``broken`` with what was wrong."""

    http_id: str = field(default_factory=lambda: uuid4().hex)
    outcome: str = "unanswered"
    text: str = ""
    ended_at: float = 0.0


class Load:
    """``clients`` of them, from entering the context until leaving it, each with a question at a
    time and a pause after it: a word problem, and every other one a stream of ``NUM_LONG`` tokens,
    which is longer than anything here takes to die. A try that was not accepted is followed by
    another."""

    def __init__(self, url: str, answers: dict[int, str], clients: int = 6) -> None:
        self.tries: list[Try] = []
        self._url = url
        self._answers = answers
        self._num_clients = clients
        self._stopping = False
        self._http: httpx.AsyncClient
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        unshared = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=self._url, timeout=SILENCE_S, limits=unshared)
        self._tasks = [asyncio.create_task(self._client(i)) for i in range(self._num_clients)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await asyncio.gather(*self._tasks)
        finally:
            await self._http.aclose()

    def outcomes(self) -> set[str]:
        return {each.outcome for each in self.tries}

    def finished_since(self, moment: float) -> int:
        return sum(t.outcome == "finished" and t.ended_at > moment for t in self.tries)

    async def _client(self, number: int) -> None:
        turn = number
        while not self._stopping:
            index = list(self._answers)[turn % len(self._answers)]
            await self._insist(index, long=turn % 2 == 1)
            await asyncio.sleep(PAUSE_S)
            turn += 1 + 2 * (turn // self._num_clients % 2)

    async def _insist(self, index: int, *, long: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (await self._once(index, long=long)).outcome in ("refused", "unanswered"):
            assert time.monotonic() < deadline, f"nobody took it within {PATIENCE_S} s"
            await asyncio.sleep(RETRY_S)

    async def _once(self, index: int, *, long: bool) -> Try:
        this = Try()
        self.tries.append(this)
        try:
            await (self._stream(this, index) if long else self._ask(this, index))
        except UNANSWERED as error:
            if this.outcome != "unanswered":
                this.outcome = f"broken: {error!r}"
        this.ended_at = time.monotonic()
        return this

    async def _ask(self, this: Try, index: int) -> None:
        body = question(index) | {"max_tokens": 200}
        headers = {"X-Request-Id": this.http_id}
        answer = await self._http.post("/v1/chat/completions", json=body, headers=headers)
        if answer.status_code != 200:
            this.outcome = _refusal(answer)
            return
        this.text = answer.json()["choices"][0]["message"]["content"]
        same = final_number(this.text) == self._answers[index]
        this.outcome = "finished" if same else f"broken: {this.text!r}"

    async def _stream(self, this: Try, index: int) -> None:
        body = {
            "model": "baton", "prompt": HELDOUT[index]["question"], "max_tokens": NUM_LONG,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": True,
        }  # fmt: skip
        headers = {"X-Request-Id": this.http_id}
        request = self._http.build_request("POST", "/v1/completions", json=body, headers=headers)
        answer = await self._http.send(request, stream=True)
        try:
            if answer.status_code != 200:
                await answer.aread()
                this.outcome = _refusal(answer)
                return
            this.outcome = "broken: no end"
            num_tokens = 0
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        this.outcome = f"broken: {event['error']}"
                        return
                    num_tokens += len(event["choices"][0]["token_ids"])
            same = num_tokens == NUM_LONG
            this.outcome = "finished" if same else f"broken: {num_tokens} tokens"
        finally:
            await answer.aclose()


def question(index: int) -> dict[str, Any]:
    content = HELDOUT[index]["question"]
    messages = [{"role": "user", "content": content}]
    return {"model": "baton", "temperature": 0, "messages": messages}


def _refusal(answer: httpx.Response) -> str:
    if answer.status_code == 503 and "retry-after" in answer.headers:
        return "refused"
    return f"broken: {answer.status_code} {answer.text}"
