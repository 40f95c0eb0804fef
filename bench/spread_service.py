"""``python -m bench.spread_service``: tokens a second through HTTP, with spread steps and without.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.spread_service --model /tmp/full --stacks colocated:2,colocated:2/off \\
        --levels 64,128,256 --out bench/results/h200x2-spread-service.json -- \\
        --load-format dummy --device cuda --speculate off

For each stack (a set-up of bench/setups.py, then ``/`` and what ``--spread`` is; ``auto`` by
default) it starts ``baton up``, waits a few seconds while idle groups time steps, records which
table they decide by, and measures each level with ``baton bench throughput``: all requests of a
level begin at once. Beside the tokens a second it records what the workers counted meanwhile:
spread and local decode steps, seconds in each, waits for others, and aborted steps. With
``--rates`` requests also arrive one by one (Poisson), so that prompts come beside steps. With
``--kill-at N`` it also kills a worker while N streams run, and reports the longest gap between two
tokens of the streams, by whether their worker was killed.

Exit status: 0, 1 when a request failed or a level was not measured.
"""

import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import httpx
import typer

from bench import result_file
from bench.commands import END_S, PLAIN_SAMPLING, CommandFailed, baton_bench
from bench.environment import describe
from bench.harness.client.required import RequestFailed
from bench.harness.options import int_list
from bench.prometheus import total
from bench.setups import Setup
from bench.spread_kill import longest_gaps
from bench.stack import Stack, StackFailed, started

COUNTERS = (
    "spread_steps", "spread_step_seconds", "spread_local_steps", "spread_local_step_seconds",
    "spread_aborts", "spread_wait_seconds",
)  # fmt: skip
LEVEL_S = 240.0
RATE_SEED = "1"
"""Every stack is sent the same arrivals."""
START_S = 170.0
TABLES_S = 8.0
"""Seconds for an idle group to time its steps before the first level."""
MEASURED = "measured here"
LOOK_S = 0.2


def counted(url: str) -> dict[str, float]:
    """What all workers have counted since they started, as of their last heartbeats."""
    text = httpx.get(f"{url}/metrics", timeout=END_S).raise_for_status().text
    return {name: total(text, [f"baton_{name}_total"]) or 0.0 for name in COUNTERS}


def tables_in_use(url: str, within_s: float) -> dict[str, str]:
    """By worker that decodes in a spread group, where its table is from; returns once all are
    measured, or after ``within_s`` seconds."""
    ends_at = time.monotonic() + within_s
    while True:
        status = httpx.get(f"{url}/status", timeout=within_s).raise_for_status().json()
        spread = {each["instance"]: each["spread"] or {} for each in status["workers"]}
        found = {name: each["table"] for name, each in spread.items() if each.get("table")}
        if (found and set(found.values()) == {MEASURED}) or time.monotonic() > ends_at:
            return found
        Event().wait(LOOK_S)


def measured(
    served: Stack, model: Path, level: int, lengths: tuple[int, int], rounds: int
) -> tuple[dict[str, Any], list[str]]:
    """The throughput at a level, with what the workers counted, and the run's problems."""
    results, problems = _run(
        served, model, "throughput", lengths, "--levels", str(level),
        "--requests", str(level * rounds), "--rounds", str(rounds), "--spot-checks", "0",
        "--time-limit-s", str(LEVEL_S),
    )  # fmt: skip
    (found,) = results["levels"]
    return found | {"counters": results["counters"]}, problems


def measured_at_rate(
    served: Stack, model: Path, rate: float, lengths: tuple[int, int], rate_s: float
) -> tuple[dict[str, Any], list[str]]:
    """As ``measured``, of requests that arrive at a rate."""
    results, problems = _run(
        served, model, "load", lengths, "--rate", str(rate), "--duration-s", str(rate_s),
        "--seed", RATE_SEED,
    )  # fmt: skip
    return results["run"] | {"counters": results["counters"]}, problems


def _run(
    served: Stack, model: Path, kind: str, lengths: tuple[int, int], *options: str
) -> tuple[dict[str, Any], list[str]]:
    before = counted(served.url)
    with tempfile.TemporaryDirectory() as folder:
        document = baton_bench(
            kind, "--tokenizer", str(model), "--input-len", str(lengths[0]),
            "--output-len", str(lengths[1]), *options, *PLAIN_SAMPLING,
            url=served.url, out=Path(folder) / "run.json", within_s=LEVEL_S + END_S,
        ).document  # fmt: skip
    after = counted(served.url)
    growth = {name: round(after[name] - before[name], 3) for name in COUNTERS}
    return document["results"] | {"counters": growth}, [*document["problems"]]


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    stacks: Annotated[str, typer.Option(help="SETUP[/SPREAD], commas between.")] = "colocated:2",
    levels: Annotated[str, typer.Option(help="Requests at once.")] = "64,128,256",
    input_len: int = 1024,
    output_len: int = 1024,
    rounds: Annotated[int, typer.Option(help="Times that a level is filled.")] = 1,
    rates: Annotated[str, typer.Option(help="Requests a second, commas between.")] = "",
    rate_s: Annotated[float, typer.Option(help="Seconds of arrivals at each rate.")] = 20.0,
    kill_at: Annotated[int, typer.Option(help="Kill a worker under so many streams.")] = 0,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("spread-service.json"),
) -> None:
    results: dict[str, Any] = {}
    problems: list[str] = []
    environment = describe(sys.argv[1:], "bench.spread_service")

    for name in stacks.split(","):
        setup, _, spread = name.partition("/")
        arguments = [*Setup.parse(setup).arguments(), "--model", str(model), *(up or [])]
        results[name] = row = {}
        try:
            with started(
                *arguments, settings={"spread": spread or "auto"}, start_s=START_S
            ) as served:
                if (spread or "auto") != "off":
                    row["tables"] = tables_in_use(served.url, TABLES_S)
                for level in int_list("--levels", levels):
                    found, wrong = measured(served, model, level, (input_len, output_len), rounds)
                    row[str(level)] = found
                    problems += [f"{name} at {level}: {each}" for each in wrong]
                    print(f"{name:16} {level:4} at once: {line(found)}", flush=True)
                for rate in [float(each) for each in rates.split(",") if each]:
                    lengths = input_len, output_len
                    found, wrong = measured_at_rate(served, model, rate, lengths, rate_s)
                    row[f"{rate:g}/s"] = found
                    problems += [f"{name} at {rate:g}/s: {each}" for each in wrong]
                    latency = f"TTFT {found['ttft_ms']['p50']:.0f}, TPOT {found['tpot_ms']['p50']}"
                    print(f"{name:16} {rate:4g} a second: {latency} ms; {line(found)}", flush=True)
                if kill_at:
                    row["kill"] = longest_gaps(served, model, kill_at, input_len, output_len)
                    print(f"{name:16} kill: {row['kill']}", flush=True)
                served.stop()
        except (StackFailed, CommandFailed, RequestFailed, httpx.HTTPError) as error:
            problems.append(f"{name}: {error}")
    settings = {"up": up or [], "input_len": input_len, "output_len": output_len}
    document = result_file.document(
        "spread-service", environment=environment, settings=settings, results=results,
        problems=problems,
    )  # fmt: skip
    result_file.save(out, document)
    for problem in problems:
        print("problem:", problem[:3000])
    raise typer.Exit(bool(problems))


def line(found: dict[str, Any]) -> str:
    """One level in words."""
    counters = found["counters"]
    spread, local = counters["spread_steps"], counters["spread_local_steps"]
    spread_ms = 1e3 * counters["spread_step_seconds"] / max(1.0, spread)
    local_ms = 1e3 * counters["spread_local_step_seconds"] / max(1.0, local)
    return (
        f"{found['total_tok_s']:9.0f} tok/s; steps of all workers: {spread:.0f} spread of "
        f"{spread_ms:.2f} ms, {local:.0f} local of {local_ms:.2f} ms, "
        f"{counters['spread_aborts']:.0f} aborted, host waits {counters['spread_wait_seconds']} s"
    )


if __name__ == "__main__":
    typer.run(main)
