"""How long streams stand still when their decode worker is killed.

    python -m bench.kill_gap [--kills 6] [--streams 8] [--model FOLDER] [--decode 2] [--device cpu]

Starts ``baton up`` with one prefill worker. For each kill, streams run until each has 20 tokens;
then a decode worker gets SIGKILL. A stream's gap lies between its last event before and its first
event after; those of requests that were placed anew count. One line a kill, and one in all.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from bench.soak_stack import SoakStack, started

START_S = 600.0
STEADY_TOKENS = 20
MAX_TOKENS = 300
BUNDLED = Path(__file__).resolve().parent.parent / "models" / "tiny"


class Stream:
    """One streamed answer: when each event came (perf_counter)."""

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self.request_id = ""
        self.at: list[float] = []
        self.finished = False
        self.steady = asyncio.Event()
        self.task = asyncio.create_task(self._run(http, seed))

    async def _run(self, http: httpx.AsyncClient, seed: int) -> None:
        body = {
            "prompt": list(range(1, 100)), "max_tokens": MAX_TOKENS, "seed": seed, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        async with http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                self.at.append(time.perf_counter())
                self.request_id = event["id"]
                self.finished = bool(event["choices"] and event["choices"][0]["finish_reason"])
                if len(self.at) == STEADY_TOKENS:
                    self.steady.set()

    def gap_s(self, at: float) -> float:
        """Between the events around ``at``."""
        after = next((i for i, event in enumerate(self.at) if event > at), None)
        if not after:
            raise SystemExit("a stream ended before the kill: more MAX_TOKENS are needed")
        return self.at[after] - self.at[after - 1]


async def round_of(stack: SoakStack, http: httpx.AsyncClient, victim: str, num: int) -> list[float]:
    """Gaps of the streams whose request was placed anew."""
    streams = [Stream(http, seed) for seed in range(num)]
    await asyncio.gather(*(stream.steady.wait() for stream in streams))
    killed_at = time.perf_counter()
    stack.kill(victim)
    await asyncio.gather(*(stream.task for stream in streams))
    gaps_s = []
    for stream in streams:
        if not stream.finished:
            raise SystemExit(f"{stream.request_id} ended early")
        record = (await http.get(f"/v1/requests/{stream.request_id}")).json()
        if record["attempts"] > 1:
            gaps_s.append(stream.gap_s(killed_at))
    return gaps_s


async def whole(http: httpx.AsyncClient, num_workers: int) -> None:
    """Until all workers are back."""
    async with asyncio.timeout(START_S):
        while len((await http.get("/status")).json()["workers"]) < num_workers:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def measure(stack: SoakStack, args: argparse.Namespace) -> list[float]:
    gaps_s: list[float] = []
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0) as http:
        for number in range(args.kills):
            await whole(http, 1 + args.decode)
            victim = f"decode-{1 + number % args.decode}"
            found = await round_of(stack, http, victim, args.streams)
            gaps_s += found
            print(f"{victim}: {len(found)} streams moved, gaps", *(f"{g:.3f}" for g in found))
    return gaps_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", type=Path, default=BUNDLED)
    args = parser.parse_args()
    arguments = ["--model", str(args.model), "--device", args.device, "--prefill", "1"]
    arguments += ["--decode", str(args.decode)]
    with (
        tempfile.TemporaryDirectory() as folder,
        started(arguments, {}, Path(folder) / "log", START_S) as stack,
    ):
        gaps_s = asyncio.run(measure(stack, args))
        stack.stop()
    if not gaps_s:
        raise SystemExit("no stream was on a worker that was killed")
    print(f"gap p50 {statistics.median(gaps_s):.3f} s, max {max(gaps_s):.3f} s, n {len(gaps_s)}")


if __name__ == "__main__":
    main()
