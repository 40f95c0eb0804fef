"""``python -m bench.prefix_service``: what the prefix cache brings over HTTP, and what it costs.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.prefix_service --out with.json --trace conversation.jsonl --rates 1,2 \\
        -- --model /tmp/full --load-format dummy --device cuda
    python -m bench.prefix_service --out without.json … -- --no-prefix-cache …

One ``baton up`` with the arguments behind ``--``. One after the other: new prompts only, where
nothing is ever hit; an agent alone, whose turns add 256 tokens to a long beginning; agents
together; and a trace: the first requests fill the cache, then follows one part of it at each rate.
The whole of each run's figures is written, but not those of single requests.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from bench import result_file, stack
from bench.commands import PLAIN_SAMPLING, CommandFailed, baton_bench
from bench.environment import ROOT, describe
from bench.prometheus import total

RUN_S = 240.0
NEW_PROMPTS = (("prefill", 512, 1, 1024), ("decode", 64, 256, 1024))
"""Name, requests at 64 at once, tokens out, tokens in."""
COUNTERS = (
    "baton_prefix_cache_queried_tokens_total",
    "baton_prefix_cache_reused_tokens_total",
    "baton_prefix_cache_evictions_total",
)
"""Of the server; what they grew by is written with each run."""
REPORTED_S = 2.5
"""Until what a run counted is in the server's metrics: workers report once a second."""
SLO = ("--slo-ttft-ms", "5000", "--slo-tpot-ms", "15")


class Runs:
    """``baton bench`` against one stack. ``write`` gets after each run what all wrote, by name."""

    def __init__(self, url: str, tokenizer: str, write: Callable[[dict[str, Any]], None]) -> None:
        self._url, self._tokenizer, self._write = url, tokenizer, write
        self._found: dict[str, Any] = {}

    def run(self, name: str, kind: str, *options: str) -> None:
        """What ``kind`` of ``baton bench`` finds with these options."""
        with tempfile.TemporaryDirectory() as folder:
            out, before = Path(folder) / "result.json", self._counted()
            more = ("--tokenizer", self._tokenizer, *PLAIN_SAMPLING)
            try:
                measured = baton_bench(
                    kind, *options, *more, url=self._url, out=out, within_s=RUN_S
                )
                print(measured.said, end="", flush=True)
                self._found[name] = _without_requests(measured.document)
                time.sleep(REPORTED_S)
                after = self._counted()
                grown = {each: after[each] - before[each] for each in COUNTERS}
                self._found[name] |= {"exit_code": measured.exit_code, "grown": grown}
            except CommandFailed as error:
                print(error, flush=True)
                self._found[name] = {"error": str(error)}
        self._write(self._found)

    def _counted(self) -> dict[str, float]:
        text = httpx.get(f"{self._url}/metrics", timeout=RUN_S).text
        return {name: total(text, [name]) or 0.0 for name in COUNTERS}

    def new_prompts(self) -> None:
        for name, requests, output_len, input_len in NEW_PROMPTS:
            self.run(
                f"new prompts, {name}", "throughput", "--levels", "64", "--rounds", "0",
                "--requests", str(requests), "--output-len", str(output_len),
                "--input-len", str(input_len), "--spot-checks", "0",
            )  # fmt: skip

    def agents(self, num: int, turns: int, shared: int, turn_len: int) -> None:
        self.run(
            f"{num} agents, {shared} tokens shared", "load", "--agents", str(num),
            "--turns", str(turns), "--agents-shared-prefix", str(shared), "--no-token-ids",
            "--agents-turn-len", str(turn_len), "--output-len", "16" if num == 1 else "128",
        )  # fmt: skip

    def trace(self, path: Path, skip: int, first: int, requests: int, rates: list[float]) -> None:
        """Behind ``skip`` requests, ``first`` of them at the last rate, then ``requests`` at
        each."""
        lines = path.read_text().splitlines(keepends=True)[skip:]
        sizes = [first, *[requests] * len(rates)]
        ends = itertools.accumulate(sizes)
        labels = ["fills the cache", *[f"{rate} a second" for rate in rates]]
        for label, rate, size, end in zip(labels, [rates[-1], *rates], sizes, ends, strict=True):
            if not size:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as part:
                part.writelines(lines[end - size : end])
                part.flush()
                self.run(
                    f"{path.stem}, {label}", "load", "--trace", part.name,
                    "--rate", str(rate), "--seed", "1", "--prompt-as", "ids", "--duration-s", "200",
                    "--stall-s", "120", "--first-byte-s", "200", *SLO,
                )  # fmt: skip


def main(
    up: Annotated[list[str], typer.Argument(help="For baton up, behind --.")],
    out: Annotated[Path, typer.Option(help="Result file.")],
    shared: Annotated[str, typer.Option(help="Tokens that agents share.")] = "8192,65536",
    trace: Annotated[Path | None, typer.Option(help="Mooncake JSONL.")] = None,
    skip: Annotated[int, typer.Option(help="Requests of the trace that are left out first.")] = 0,
    first: Annotated[int, typer.Option(help="Requests of the trace that fill the cache.")] = 400,
    requests: Annotated[int, typer.Option(help="Requests of the trace at each rate.")] = 150,
    rates: Annotated[str, typer.Option(help="Requests a second.")] = "1,2,3",
    costs: Annotated[bool, typer.Option(help="Measure new prompts.")] = True,
    agents: Annotated[bool, typer.Option(help="Measure agents.")] = True,
    turns: Annotated[int, typer.Option(help="Of each agent.")] = 20,
) -> None:
    """Measure, and write what was found after each part."""
    lengths = [int(each) for each in shared.split(",")]
    parts: list[Callable[[Runs], None]] = [Runs.new_prompts] if costs else []
    if agents:
        parts += [partial(Runs.agents, num=1, turns=turns, shared=n, turn_len=256) for n in lengths]
        parts.append(partial(Runs.agents, num=8, turns=turns, shared=lengths[0], turn_len=192))
    if trace is not None:
        paces = [float(each) for each in rates.split(",")]
        parts.append(
            partial(Runs.trace, path=trace, skip=skip, first=first, requests=requests, rates=paces)
        )
    model = up[up.index("--model") + 1] if "--model" in up else str(ROOT / "models/tiny")

    def write(found: dict[str, Any]) -> None:
        document = result_file.document(
            "prefix-service",
            environment=describe(sys.argv[1:], "bench.prefix_service"),
            server={"arguments": up},
            settings={"skip": skip, "first": first, "requests": requests},
            results=found,
        )
        result_file.write(out, document)

    with stack.started(*up) as served:
        runs = Runs(served.url, model, write)
        for part in parts:
            part(runs)
        served.stop()


def _without_requests(found: dict[str, Any]) -> dict[str, Any]:
    """A result without what it says of single requests and of each second of a GPU."""
    left_out = ("requests", "timeline", "gpu")
    results = found["results"]
    for each in (results, *results.get("levels", ())):
        for name in left_out:
            each.pop(name, None)
    return {"settings": found["settings"], "problems": found["problems"], "results": results}


if __name__ == "__main__":
    typer.run(main)
