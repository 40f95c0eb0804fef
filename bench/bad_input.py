"""``python -m bench.bad_input``: bad requests beside running streams.

A stack serves streams. They run alone (quiet), then beside each body of bad_bodies.py, one after
the other (single), beside 100 of these at once (together), and beside 100 at once of which no two
are equal (distinct). All the while another process asks for ``/ping`` every few milliseconds: how
late the event loop is, an answer shows from outside. Of the distinct ones, those that would have to
wait for long may also be refused with a 503.

    python -m bench.bad_input --out bench/results/cpu-bad-input.json

Exit code: 0 all targets met, 1 one missed, 2 could not measure.
"""

import asyncio
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from bench import environment, stack
from bench.bad_bodies import BAD
from bench.bad_input_beside import Streams, pinging
from bench.environment import ROOT
from bench.measures import percentile
from bench.prometheus import series
from bench.result_file import document, write

MS = 1000.0
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Targets:
    answer_s: float = 1.0
    late_ms: float = 50.0


@dataclass(frozen=True)
class Answered:
    name: str
    status: int
    took_s: float
    param: str


async def _send(client: httpx.AsyncClient, name: str, body: bytes) -> Answered:
    began = time.monotonic()
    response = await client.post(_CHAT, content=body)
    took_s = time.monotonic() - began
    param = (response.json().get("error") or {}).get("param") or ""
    return Answered(name, response.status_code, took_s, param)


async def measure(
    url: str, *, num_streams: int, num_at_once: int, quiet_s: float
) -> dict[str, Any]:
    """All phases against the server at ``url``."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=120.0, limits=limits, headers={"content-type": "application/json"}
    ) as client:
        await _warm_up(client)
        names = list(BAD)
        single = [(name, BAD[name].body(1)) for name in names]
        crowd = [names[i % len(names)] for i in range(num_at_once)]
        together = [(name, BAD[name].body(2)) for name in crowd]
        distinct = [(name, BAD[name].body(3 + i)) for i, name in enumerate(crowd)]
        phases: dict[str, Any] = {}
        with pinging(url) as pings:
            streams = Streams(client, num_streams)
            spans = {"quiet": await _span(asyncio.sleep(quiet_s, []))}
            before = await _late(client)
            spans["single"] = await _span(_one_by_one(client, single))
            spans["together"] = await _span(_at_once(client, together))
            spans["distinct"] = await _span(_at_once(client, distinct))
            after = await _late(client)
            gaps = await streams.end()
        for phase, (begin, end, answers) in spans.items():
            phases[phase] = {
                "seconds": end - begin,
                "ping": _spread([took for at, took in pings if begin <= at <= end]),
                "stream_gap": _spread([b - a for a, b in gaps if begin <= b <= end]),
                "answers": [asdict(each) for each in answers],
            }
    return {
        **phases,
        "streams": {"ended": streams.num_ended, "failed": streams.num_failed},
        "timers_later_than_50_ms": after - before,
    }


async def _warm_up(client: httpx.AsyncClient) -> None:
    """What is slow only once: the process that reads heavy bodies, and the one that forks."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 2, "unknown": "x" * 70_000,
            "structured_outputs": {"regex": "[a-c]+"}}  # fmt: skip
    for _ in range(2):
        (await client.post(_CHAT, json=body)).raise_for_status()


async def _one_by_one(client: httpx.AsyncClient, bodies: list[tuple[str, bytes]]) -> list[Answered]:
    return [await _send(client, name, body) for name, body in bodies]


async def _at_once(client: httpx.AsyncClient, bodies: list[tuple[str, bytes]]) -> list[Answered]:
    return await asyncio.gather(*(_send(client, name, body) for name, body in bodies))


async def _span(work: Any) -> tuple[float, float, list[Answered]]:
    begin = time.monotonic()
    answers = await work
    return begin, time.monotonic(), list(answers)


async def _late(client: httpx.AsyncClient) -> float:
    """How many of the coordinator's own timers were late by more than 50 ms so far."""
    text = (await client.get("/metrics")).text
    name = "baton_event_loop_lag_seconds"
    by_bound = {labels["le"]: value for labels, value in series(text, f"{name}_bucket")}
    return by_bound["+Inf"] - by_bound["0.05"]


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {"num": 0}
    return {
        "num": len(values),
        "p50_ms": MS * percentile(values, 0.5),
        "p99_ms": MS * percentile(values, 0.99),
        "max_ms": MS * max(values),
    }


def problems(results: dict[str, Any], targets: Targets) -> list[str]:
    """What misses its target."""
    found = []
    for phase in ("single", "together", "distinct"):
        for each in results[phase]["answers"]:
            name, took_s = each["name"], each["took_s"]
            if each["status"] == 503 and phase == "distinct":
                continue
            if each["status"] != 400:
                found.append(f"{phase}: {name}: status {each['status']}")
            elif not each["param"].startswith(BAD[name].param):
                found.append(f"{phase}: {name}: blames {each['param']!r}")
            if took_s > targets.answer_s and phase != "distinct":
                found.append(f"{phase}: {name}: {took_s:.2f} s")
        if (late := results[phase]["ping"]["max_ms"]) > targets.late_ms:
            found.append(f"{phase}: an answer to /ping took {late:.0f} ms")
    if results["streams"]["failed"]:
        found.append(f"{results['streams']['failed']} streams failed")
    return found


def main(
    out: Annotated[Path | None, typer.Option(help="Where the result goes.")] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that runs; else one is started.")
    ] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
    streams: Annotated[int, typer.Option(help="Streams beside.")] = 4,
    at_once: Annotated[int, typer.Option(help="Bad requests at once.")] = 100,
    quiet: Annotated[float, typer.Option(help="Seconds of the streams alone.")] = 5.0,
) -> None:
    """Send bad requests beside running streams, and see who notices."""
    options: dict[str, Any] = {"num_streams": streams, "num_at_once": at_once, "quiet_s": quiet}
    try:
        if url is not None:
            results = asyncio.run(measure(url, **options))
        else:
            with stack.running(model, device=device) as served:
                results = asyncio.run(measure(served.url, **options))
    except (stack.StackFailed, httpx.HTTPError, OSError) as error:
        typer.echo(f"error: {error!r}", err=True)
        raise typer.Exit(2) from None
    targets = Targets()
    found = problems(results, targets)
    if out is not None:
        where = environment.describe(sys.argv[1:], "bench.bad_input")
        settings = {**options, "targets": asdict(targets), "model": model.name}
        write(out, document("bad-input", environment=where, server={"device": device},
                            settings=settings, results=results, problems=found))  # fmt: skip
    for phase in ("quiet", "single", "together", "distinct"):
        took = [each["took_s"] for each in results[phase]["answers"]]
        slowest = f", slowest answer {max(took):.2f} s" if took else ""
        ping, gap = (results[phase][name].get("max_ms", 0.0) for name in ("ping", "stream_gap"))
        typer.echo(f"{phase}: /ping {ping:.0f} ms at most, gaps {gap:.0f} ms at most{slowest}")
    for problem in found:
        typer.echo(f"MISS {problem}")
    raise typer.Exit(1 if found else 0)


if __name__ == "__main__":
    typer.run(main)
