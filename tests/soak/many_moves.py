"""Moves many sequences between real processes, and compares every token.

    python -m tests.soak.many_moves --moves 2000 --out FILE -- --prefill 1 --decode 3

starts ``baton up`` with what follows ``--``, every handoff's bytes compared by digest. The answers
of some requests are taken first, undisturbed. Then clients ask for them over and over, while one
worker after the other that decodes gets SIGTERM: its sequences move, and a new process takes its
place. With ``--pools`` (behind ``--``: ``--pools manual``) the pools change instead; behind
``--pools auto`` bursts of prompts come and go, and the pools follow. Exit code 1 if an answer
differs or fails, or a request is still open at the end.

In bfloat16 (``--margin 0.06``) an answer may also be one that came in the ``--quiet-s`` before the
first drain, or that of its prompt and first tokens computed anew (tests/soak/resumed.py):
``rounded_otherwise`` counts those. With ``--exact`` none may: each prompt is computed as a whole,
alone and apart from steps, and so few requests are open that others do not change the bits of a
GPU's decode steps. That needs a model that Triton's kernels support, which the bundled one is not.
"""

import asyncio
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.measures import percentiles
from bench.result_file import document, save
from bench.stack import Stack, StackFailed, started
from tests.soak.cases import FEW, LONGEST, MIN_MARGIN_NATS, Case, NoCases, prepared
from tests.soak.resumed import explained
from tests.soak.stream_events import all_back

START_S = 120.0
POLL_S = 0.2
IDLE_S = 5.0
LOADED_S = 0.5
"""The next worker drains when the load has been back for so long."""
BURST, BURST_LEN, QUIET_S = 48, 600, 3.0
MOST_ALIKE = 64
"""Sequences of a decode step up to which a GPU computes the same bits for each."""
EXACT = {"max_batch_rows": 1, "prefix_cache": 0}
"""Settings with which a prompt is computed as a whole, alone and apart from steps."""
_CHANGES = re.compile(r"^baton_role_changes_total\{[^}]*\} (\S+)$", re.MULTILINE)
_MOVES = re.compile(r'^baton_moves_total\{.*outcome="(\w+)".*\} (\S+)$', re.MULTILINE)
_HELD = re.compile(r"^baton_open_tokens (\S+)$", re.MULTILINE)


async def counted(http: httpx.AsyncClient) -> dict[str, int]:
    """The coordinator's counts of moves, by outcome, and of changed roles."""
    text = (await http.get("/metrics")).text
    moves = Counter[str]()
    for outcome, number in _MOVES.findall(text):
        moves[outcome] += round(float(number))
    changes = sum(map(float, _CHANGES.findall(text)))
    return dict(moves) | ({"role_changes": round(changes)} if changes else {})


async def held_at_end(http: httpx.AsyncClient) -> int:
    """Tokens that open requests hold once nobody asks any more; the gauge follows within a tick."""
    held, deadline = -1, perf_counter() + IDLE_S
    while held and perf_counter() < deadline:  # the gauge can only be asked
        await asyncio.sleep(POLL_S)
        (text,) = _HELD.findall((await http.get("/metrics")).text)
        held = round(float(text))
    return held


class Clients:
    """Clients that ask for cases until they are told to stop. ``found`` counts answers: right,
    wrong, and failed ones by status."""

    def __init__(self, http: httpx.AsyncClient, cases: list[Case], number: int) -> None:
        self.found: Counter[str] = Counter()
        self._wrong: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._known: set[tuple[int, tuple[int, ...]]] = set()
        self._http, self._cases = http, cases
        self._stopped = False
        self._tasks = [asyncio.create_task(self._run(first)) for first in range(number)]

    async def _run(self, first: int) -> None:
        turn = first
        while not self._stopped:
            turn = (turn + 1) % len(self._cases)
            case = self._cases[turn]
            answer = await self._http.post("/v1/completions", json=case.body)
            if answer.status_code != 200:
                self.found[f"status {answer.status_code}"] += 1
                print(f"{case.name}: {answer.text}")
                continue
            (choice,) = answer.json()["choices"]
            self.found["tokens"] += len(choice["token_ids"])
            right = tuple(choice["token_ids"]) == case.token_ids
            self.found["right" if right else "wrong"] += 1
            if not right:
                self._wrong[turn, tuple(choice["token_ids"])] += 1

    def keep_as_known(self) -> None:
        """Take what came so far for answers of a stack that nothing disturbs, and count anew."""
        for (turn, token_ids), number in self._wrong.items():
            print(f"{number} times, undisturbed:", end=" ")
            self._report(self._cases[turn], list(token_ids))
        self._known |= self._wrong.keys()
        self._wrong.clear()
        self.found = Counter(quiet=self.found["right"], quiet_rounded=self.found["wrong"])

    async def explain(self) -> None:
        """Count the wrong answers that a rounding changed apart; the others are reported."""
        print(f"{len(self._wrong)} different wrong answers are looked into", flush=True)
        at_once = asyncio.Semaphore(FEW)
        await asyncio.gather(*(self._explain(*wrong, at_once) for wrong in self._wrong.items()))

    async def _explain(
        self, wrong: tuple[int, tuple[int, ...]], number: int, at_once: asyncio.Semaphore
    ) -> None:
        turn, token_ids = wrong
        case = self._cases[turn]
        async with at_once:
            rounded = wrong in self._known or await explained(self._http, {}, case, list(token_ids))
        if rounded:
            self.found["rounded_otherwise"] += number
            self.found["wrong"] -= number
        print(f"{number} times{', rounded otherwise' if rounded else ''}:", end=" ")
        self._report(case, list(token_ids))

    def _report(self, case: Case, token_ids: list[int]) -> None:
        first = case.first_difference(token_ids)
        of = len(case.token_ids)
        print(f"{case.name}: differs from token {first} of {of} on{case.clear_by(first)}")

    async def stop(self) -> None:
        """Wait for the answers that are under way."""
        self._stopped = True
        await asyncio.gather(*self._tasks)


@dataclass
class Drains:
    """Lets one worker after the other drain; a new process takes its place."""

    stack: Stack
    workers: list[str]
    done: int = 0

    async def turn(self, http: httpx.AsyncClient) -> None:
        await all_back(http, len(self.workers), START_S)
        await asyncio.sleep(LOADED_S)
        able = [name for name in self.workers if not name.startswith("prefill")]
        self.stack.kill(able[self.done % len(able)], signal.SIGTERM)
        self.done += 1
        await asyncio.sleep(1.0)  # the coordinator hears of the drain before it is asked again

    def found(self) -> dict[str, int | float]:
        return {"drained": self.done}


@dataclass
class Kills:
    """Kills a worker in a share ``kills`` of the turns."""

    stack: Stack
    workers: list[str]
    draw: random.Random
    kills: float
    num_killed: int = 0

    async def perhaps_kill(self, http: httpx.AsyncClient) -> None:
        """Kill a worker, or none; returns when all are there."""
        if self.draw.random() < self.kills:
            self.stack.kill(self.draw.choice(self.workers))
            self.num_killed += 1
            await asyncio.sleep(1.0)  # the coordinator misses it before it is asked again
        await all_back(http, len(self.workers), START_S)


@dataclass
class Changes(Kills):
    """Asks for other pools."""

    took_s: list[float] = field(default_factory=list)
    """Seconds until each change was done."""

    async def turn(self, http: httpx.AsyncClient) -> None:
        await self.perhaps_kill(http)
        await asyncio.sleep(LOADED_S)
        number = len(self.workers)
        prefill = self.draw.randint(0, number - 1)
        began = perf_counter()
        answer = await http.post("/v1/pools", json={"prefill": prefill, "decode": number - prefill})
        answer.raise_for_status()
        self.took_s.append(perf_counter() - began)

    def found(self) -> dict[str, int | float]:
        took = percentiles(self.took_s, (0.5, 0.99))
        return {
            "changes": len(self.took_s), "killed": self.num_killed,
            **{f"change_{name}_s": round(seconds, 4) for name, seconds in took.items()},
        }  # fmt: skip


@dataclass
class Shifts(Kills):
    """Bursts of prompts by turns with none, so that pools that follow the load change."""

    num_bursts: int = 0

    async def turn(self, http: httpx.AsyncClient) -> None:
        await self.perhaps_kill(http)
        prompts = [[self.draw.randrange(1, 200) for _ in range(BURST_LEN)] for _ in range(BURST)]
        bodies = [{"prompt": prompt, "max_tokens": 1} for prompt in prompts]
        async with httpx.AsyncClient(base_url=self.stack.url, timeout=120.0) as other:
            answers = await asyncio.gather(*(other.post("/v1/completions", json=b) for b in bodies))
        for answer in answers:
            answer.raise_for_status()
        self.num_bursts += 1
        await asyncio.sleep(QUIET_S)

    def found(self) -> dict[str, int | float]:
        return {"bursts": self.num_bursts, "killed": self.num_killed}


async def run(
    disturbance: Drains | Changes | Shifts,
    moves: int, clients: int, minutes: float, quiet_s: float, cases: Callable[..., Any],
) -> dict[str, int | float]:  # fmt: skip
    """Disturb until so many sequences have moved, or the time is over. Raises NoCases."""
    limits = httpx.Limits(max_connections=clients + 2)
    url = disturbance.stack.url
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as http:
        known, num_left_out = await cases(http)
        print(f"{len(known)} answers are known, {num_left_out} are left out", flush=True)
        load = Clients(http, known, clients)
        if quiet_s:
            await asyncio.sleep(quiet_s)
            load.keep_as_known()
        began, moved = perf_counter(), await counted(http)
        while moved.get("moved", 0) < moves and perf_counter() - began < 60 * minutes:
            await disturbance.turn(http)
            moved = await counted(http)
        seconds = perf_counter() - began
        await load.stop()
        print(f"{moved}, {dict(load.found)} in {seconds:.0f} s", flush=True)
        await load.explain()
        held = await held_at_end(http)
        moved = await counted(http)
    return {
        **moved, **load.found, **disturbance.found(), "tokens_held": held,
        "seconds": round(seconds),
    }  # fmt: skip


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    moves: Annotated[int, typer.Option(min=1, help="Moves to reach.")] = 2_000,
    clients: Annotated[int, typer.Option(min=1, help="Requests open at a time.")] = 48,
    seed: Annotated[int, typer.Option(help="Of the requests.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.1, help="At most so long.")] = 30.0,
    margin: Annotated[float, typer.Option(help="Nats of a clear choice.")] = MIN_MARGIN_NATS,
    longest: Annotated[int, typer.Option(min=16, help="The most tokens of an answer.")] = LONGEST,
    num_cases: Annotated[int, typer.Option("--cases", min=1, help="Different requests.")] = 24,
    quiet_s: Annotated[float, typer.Option(help="Seconds of load before it begins.")] = 0.0,
    pools: Annotated[bool, typer.Option("--pools", help="Change pools instead.")] = False,
    kills: Annotated[float, typer.Option(help="Share of the changes behind a kill.")] = 0.0,
    exact: Annotated[
        bool, typer.Option("--exact", help=f"Same bits for all; up to {MOST_ALIKE} clients.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Drain workers, or change the pools, under load, and compare the answers."""
    if exact and clients > MOST_ALIKE:
        raise SystemExit(f"error: --exact: {clients} clients are more than {MOST_ALIKE}")
    settings = {"verify_handoff": 1} | (EXACT if exact else {})
    company = 2 * clients if margin > MIN_MARGIN_NATS else 0  # a worker may get all sequences
    cases = partial(
        prepared, seed=seed, count=num_cases, margin_nats=margin, longest=longest, company=company
    )
    try:
        with started(*arguments, settings=settings, start_s=START_S) as stack:
            names = [n for n in stack.pids() if n != "coordinator" and "redis" not in n]
            by: Drains | Changes | Shifts = Drains(stack, sorted(names))
            if pools and "auto" in arguments:
                by = Shifts(stack, sorted(names), random.Random(seed), kills)
            elif pools:
                by = Changes(stack, sorted(names), random.Random(seed), kills)
            found = asyncio.run(run(by, moves, clients, minutes, quiet_s, cases))
            exit_code = stack.stop()
    except (StackFailed, NoCases) as error:
        raise SystemExit(f"error: {error}") from None
    print(", ".join(f"{name} {number}" for name, number in found.items()))
    problems = [f"{name}: {n}" for name, n in found.items() if name.startswith(("wrong", "status"))]
    problems += ["requests are open at the end"] if found["tokens_held"] else []
    problems += [f"baton up ended with {exit_code}"] if exit_code else []
    problems += ["too few moved"] if found.get("moved", 0) < moves else []
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.many_moves")
        asked = {"up": arguments, "moves": moves, "clients": clients, "seed": seed}
        asked |= {
            "margin_nats": margin,
            "longest": longest,
            "pools": pools,
            "kills": kills,
            "quiet_s": quiet_s,
            "exact": exact,
        }
        save(
            out,
            document(
                "moves", environment=environment, settings=asked, results=found, problems=problems
            ),
        )
    if problems:
        raise SystemExit(f"error: {'; '.join(problems)}")


if __name__ == "__main__":
    typer.run(main)
