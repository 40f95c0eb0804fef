"""The load of a soak of handoffs: clients that stream or leave early, and workers that die."""

import asyncio
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.prometheus import series, total
from bench.stack import Stack
from tests.soak.stream_events import status, stream_events

POLL_S = 0.1
SETTLE_S = 120.0
RETRY_S = 0.5


class SoakFailed(Exception):
    """What must not happen; ends the run."""


@dataclass(frozen=True)
class Plan:
    """What is asked of the stack. ``abort_share`` of the clients leave early; a killed worker is
    back within ``back_s``, and everything done within ``run_s``."""

    handoffs: int
    concurrency: int
    max_prompt: int
    max_output: int
    abort_share: float
    kills: int
    seed: int
    num_ids: int
    back_s: float = 120.0
    run_s: float = 1800.0


@dataclass
class Tally:
    """What the clients saw; ``prompt_tokens`` and ``lengths`` are of requests that were taken."""

    landed: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    failures: list[str] = field(default_factory=list)
    lengths: Counter[str] = field(default_factory=Counter)


class Soak:
    """One run against a stack."""

    def __init__(self, stack: Stack, plan: Plan) -> None:
        self.tally = Tally()
        self.kills: list[dict[str, Any]] = []
        self._stack, self._plan = stack, plan
        self._draw = random.Random(plan.seed)
        self._progress = asyncio.Event()
        self._http = httpx.AsyncClient(base_url=stack.url, timeout=httpx.Timeout(SETTLE_S))

    async def run(self) -> dict[str, Any]:
        """The load, the kills, and what is left behind. ``tally.failures`` says why it ended
        before its time."""
        async with self._http:
            try:
                async with asyncio.timeout(self._plan.run_s):
                    self._num_workers = len((await status(self._http))["workers"])
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._kill_in_turn())
                        for _ in range(self._plan.concurrency):
                            group.create_task(self._client())
            except* (SoakFailed, httpx.HTTPError) as failed:
                self.tally.failures += [_said(error) for error in failed.exceptions]
            except* TimeoutError:
                self.tally.failures.append(
                    f"not done within {self._plan.run_s:g} s: {self.tally.landed} handoffs landed, "
                    f"{len(self.kills)} workers killed"
                )
            return await self._settled()

    async def _client(self) -> None:
        while self.tally.landed < self._plan.handoffs or len(self.kills) < self._plan.kills:
            await self._request()
            self._progress.set()

    async def _request(self) -> None:
        draw, plan = self._draw, self._plan
        length = max(1, round(math.exp(draw.uniform(0.0, math.log(plan.max_prompt)))))
        output = draw.randint(2, plan.max_output)
        leaves_at = draw.randint(0, output - 1) if draw.random() < plan.abort_share else output + 1
        body = {
            "prompt": [draw.randrange(plan.num_ids) for _ in range(length)],
            "max_tokens": output, "temperature": draw.choice([0.0, 1.0]),
            "seed": draw.randrange(1 << 31), "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        seen, taken = 0, True
        try:
            async for _, event in stream_events(self._http, body):
                seen += sum(len(choice["token_ids"]) for choice in event["choices"])
                if seen >= leaves_at:
                    self.tally.aborted += 1
                    return
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 503:
                raise SoakFailed(repr(error)) from error
            self.tally.refused += 1
            taken = False
            await asyncio.sleep(RETRY_S)
            return
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise SoakFailed(f"after {seen} tokens: {error!r}") from error
        finally:
            self.tally.landed += seen >= 2  # the second token comes from a decode worker
            self.tally.prompt_tokens += length * taken
            self.tally.lengths[f"<= {1 << (length - 1).bit_length()}"] += taken
        if seen != output:
            raise SoakFailed(f"{seen} of {output} tokens for a prompt of {length}")
        self.tally.finished += 1

    async def _kill_in_turn(self) -> None:
        """Evenly over the run, prefill and decode by turns."""
        for number in range(self._plan.kills):
            due = self._plan.handoffs * (number + 1) // (self._plan.kills + 1)
            while self.tally.landed < due:
                self._progress.clear()
                await self._progress.wait()
            role = ("prefill", "decode")[number % 2]
            alive = sorted(self._stack.pids())
            victims = [name for name in alive if name.startswith(f"{role}-")]
            if not victims:
                raise SoakFailed(f"no {role} worker to kill among {', '.join(alive)}")
            await self._kill(self._draw.choice(victims))

    async def _kill(self, victim: str) -> None:
        """Returns when another has taken its place."""
        before = {worker["instance"] for worker in (await status(self._http))["workers"]}
        self._stack.kill(victim)
        began, landed = time.monotonic(), self.tally.landed

        def replaced(found: dict[str, Any]) -> bool:
            now = {worker["instance"] for worker in found["workers"]}
            return len(now) == self._num_workers and now != before

        back = await self._eventually(replaced, self._plan.back_s)
        back_s = round(time.monotonic() - began, 2) if back else None
        self.kills.append({"victim": victim, "after_handoffs": landed, "back_s": back_s})
        print(f"killed {self.kills[-1]}", file=sys.stderr)
        if not back:
            raise SoakFailed(f"{victim} was not back {self._plan.back_s:g} s after its kill -9")

    async def _settled(self) -> dict[str, Any]:
        """Wait until nothing is open; what is then free, and what the allocators say."""
        clean = await self._eventually(_is_clean, SETTLE_S)
        try:
            workers = (await status(self._http))["workers"]
            metrics = (await self._http.get("/metrics")).text
        except httpx.HTTPError as error:
            self.tally.failures.append(f"at the end: {_said(error)}")
            return {"clean": False, "requests": {}}
        return {
            "clean": clean,
            "workers": workers,
            "handoff_bytes": total(metrics, ["baton_handoff_bytes_total"]) or 0.0,
            "requests": _labelled(metrics, "baton_requests_total"),
            "placed_anew": _labelled(metrics, "baton_retries_total"),
            "selftest_bytes_per_second": _labelled(
                metrics, "baton_handoff_selftest_bytes_per_second"
            ),
        }

    async def _eventually(
        self, condition: Callable[[dict[str, Any]], bool], within_s: float
    ) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    with suppress(httpx.HTTPError):
                        if condition(await status(self._http)):
                            return True
                    await asyncio.sleep(POLL_S)
        return False


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, SoakFailed) else repr(error)


def _is_clean(found: dict[str, Any]) -> bool:
    return found["queued"] == found["running"] == 0 and all(
        worker["free_pages"] == worker["num_pages"]
        and worker["free_state_slots"] == worker["num_state_slots"]
        and not worker["accounting_error"]
        for worker in found["workers"]
    )


def _labelled(text: str, name: str) -> dict[str, float]:
    """Values by labels, as they stand in the text."""
    return {
        ",".join(f'{label}="{value}"' for label, value in labels.items()): found
        for labels, found in series(text, name)
    }
