"""``python -m tests.soak.handoffs``: handoffs under load, aborts and kill -9, every byte hashed.

    python -m tests.soak.handoffs --handoffs 1000 --max-prompt 32768 --kills 6 \\
        --out bench/results/h200-handoff-soak.json -- --prefill 1 --decode 3 --load-format dummy …

starts ``baton up`` with what follows ``--`` and BATON_VERIFY_HANDOFF=1, so that both ends of every
handoff hash its pages and state and a difference, or no hash, fails the request. Streams with
prompts of random length (log-uniform) run until so many handoffs have landed and so many workers
were killed; some clients leave at a random token; at even intervals a prefill and a decode worker
are killed in turn, each when the one before is back. It passes when

- every request whose client stayed ended with as many tokens as it asked for (how many is compared,
  not which: prompts that are computed together are rounded otherwise than alone);
- the decode workers compared the digests of as many handoffs as landed, none differed, and nothing
  failed for any other reason (a prompt that a decode worker computed needs no handoff: they do so
  while no prefill worker is there);
- every killed worker was back within ``--back-s``, and all of it was done within ``--run-s``;
- at the end all pages and state slots are free, the books balance, and the stack exits with 0.

The first failure ends the run.
"""

import asyncio
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.prometheus import series, total
from bench.stack import Stack, StackFailed, started
from tests.soak.stream_events import status, stream_events

POLL_S = 0.1
SETTLE_S = 120.0
RETRY_S = 0.5
LOG_MISMATCH = "the cache changed on its way"
LOG_COMPARED = re.compile(r" decode landed .* verified=True$", re.MULTILINE)
LOG_COMPUTED = " decode prefilled "
BRIEF = (
    "passed", "handoffs", "digests_compared", "digest_mismatches", "finished", "aborted",
    "failures", "seconds",
)  # fmt: skip


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


def soak(
    plan: Plan, arguments: list[str], settings: dict[str, str], start_s: float
) -> dict[str, Any]:
    """Run ``plan`` against a new stack; ``passed`` in the result says whether all was well."""
    # What is compared is told in the workers' lines about each request.
    verified: dict[str, Any] = {"verify_handoff": "1", "log_level": "debug", **settings}
    with started(*arguments, settings=verified, start_s=start_s) as stack:
        run = Soak(stack, plan)
        began = time.monotonic()
        left = asyncio.run(run.run())
        seconds = time.monotonic() - began
        exit_code = stack.stop()
        told = stack.text
    mismatches, compared = told.count(LOG_MISMATCH), len(LOG_COMPARED.findall(told))
    computed = told.count(LOG_COMPUTED)
    tally = run.tally
    passed = (
        tally.landed >= plan.handoffs and not tally.failures and left["clean"] and exit_code == 0
        and not mismatches and compared + computed >= tally.landed and len(run.kills) == plan.kills
        and all(kill["back_s"] is not None for kill in run.kills)
        and not any('state="failed"' in labels for labels in left["requests"])
    )  # fmt: skip
    return {
        "passed": passed, "seconds": round(seconds, 1), "handoffs": tally.landed,
        "digests_compared": compared, "digest_mismatches": mismatches,
        "prompts_of_decode_workers": computed,
        "finished": tally.finished, "aborted": tally.aborted, "refused": tally.refused,
        "failures": tally.failures[:20], "kills": run.kills,
        "prompt_tokens": tally.prompt_tokens, "exit_code": exit_code,
        "prompts_by_length": dict(sorted(tally.lengths.items(), key=lambda i: int(i[0][3:]))),
        **left,
    }  # fmt: skip


def main(
    arguments: Annotated[list[str] | None, typer.Argument(help="Of baton up.")] = None,
    handoffs: int = 1000,
    concurrency: Annotated[int, typer.Option(help="Streams open at a time.")] = 16,
    max_prompt: Annotated[int, typer.Option(help="Tokens.")] = 32_768,
    max_output: Annotated[int, typer.Option(help="Tokens.")] = 64,
    abort_share: Annotated[float, typer.Option(help="Of clients that leave early.")] = 0.2,
    kills: Annotated[int, typer.Option(help="kill -9, prefill and decode by turns.")] = 6,
    seed: int = 0,
    num_ids: Annotated[int, typer.Option(help="Prompts hold ids below this.")] = 1_000,
    setting: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, for BATON_NAME.")] = None,
    start_s: Annotated[float, typer.Option(help="Seconds it may take to start.")] = 300.0,
    back_s: Annotated[float, typer.Option(help="Seconds until a killed worker is back.")] = 120.0,
    run_s: Annotated[float, typer.Option(help="Seconds all of it may take.")] = 1800.0,
    out: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    plan = Plan(
        handoffs, concurrency, max_prompt, max_output, abort_share, kills, seed, num_ids,
        back_s, run_s,
    )  # fmt: skip
    settings = dict(each.split("=", 1) for each in setting or ())
    try:
        found = soak(plan, arguments or [], settings, start_s)
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    result = {**describe(sys.argv[1:], "tests.soak.handoffs"), "plan": asdict(plan), **found}
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in BRIEF}))
    raise typer.Exit(0 if result["passed"] else 1)


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


if __name__ == "__main__":
    typer.run(main)
