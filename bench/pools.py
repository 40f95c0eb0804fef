"""``python -m bench.pools``: the throughput protocol over set-ups of pools, one after the other.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.pools --setup colocated:4 --setup split:1+3 --setup split:2+2 --interference \\
        --model /tmp/full --load-format dummy --device cuda --prefix h200-

Each set-up is started, warmed up by a few requests, measured by ``baton bench throughput`` over
HTTP, asked for the stages of its handoffs since the warm-up, and stopped. Arguments behind ``--``
go to ``baton bench throughput``. With ``--long-prompt N`` the stages of handoffs of such prompts
are measured too, 32 of them, eight at once, 32 tokens out, otherwise with the same arguments; with
``--interference`` what 8k prompts do to running streams (bench/interference.py). For each set-up
there are a result, a report and what else was measured in the folder of results. Exit code: 0; the
first bad one of ``baton bench throughput``'s; 2 when a set-up did not start.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from tokenizers import Tokenizer

from bench import environment, stack
from bench.handoff_stages import of_records, read_records
from bench.interference import Load, NotMeasured, measure
from bench.setups import Setup

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = ("--levels", "1", "--requests", "4", "--output-len", "8", "--spot-checks", "0")
LONG = (
    "--levels", "8", "--requests", "32", "--rounds", "0",
    "--output-len", "32", "--spot-checks", "0",
)  # fmt: skip


def main(
    setup: Annotated[list[str], typer.Option(help="split:P+D or colocated:N; several times.")],
    more: Annotated[
        list[str] | None, typer.Argument(help="For baton bench throughput, behind --.")
    ] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results",
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
    long_prompt: Annotated[int, typer.Option(help="Also handoffs of such prompts; 0: no.")] = 0,
    interference: Annotated[bool, typer.Option(help="Also what 8k prompts disturb.")] = False,
) -> None:
    """Measure each set-up, and what its handoffs took."""
    try:
        arguments = {each: Setup.parse(each).arguments() for each in setup}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    statuses = []
    for each, how in arguments.items():
        name = f"{prefix}{each.replace(':', '-').replace('+', '-')}"
        typer.echo(f"{each}: starting", err=True)
        try:
            with stack.running(model, *how, "--load-format", load_format, device=device) as served:
                out = out_dir / f"{name}.json"
                with tempfile.TemporaryDirectory() as folder:
                    ignored = Path(folder) / "warm-up.json"
                    throughput(served.url, model, ignored, WARM_UP, report=False)
                since = time.time()
                statuses.append(throughput(served.url, model, out, more or []))
                write_stages(out_dir / f"{name}-handoff.json", each, served, since)
                if long_prompt:
                    out = out_dir / f"{name}-{long_prompt}.json"
                    long = [*(more or []), "--input-len", str(long_prompt), *LONG]
                    since = time.time()
                    statuses.append(throughput(served.url, model, out, long))
                    stages_out = out_dir / f"{name}-handoff-{long_prompt}.json"
                    write_stages(stages_out, each, served, since)
                if interference:
                    disturb(served.url, model, each, out_dir / f"{name}-interference.json")
        except (stack.StackFailed, NotMeasured, OSError, redis.RedisError) as error:
            typer.echo(f"error: {each}: {error}", err=True)
            raise typer.Exit(2) from None
    raise typer.Exit(next((status for status in statuses if status), 0))


def throughput(
    url: str, model: Path, out: Path, more: Sequence[str], *, report: bool = True
) -> int:
    """The exit status of ``baton bench throughput``; with ``report`` a page lies beside ``out``."""
    command = [sys.executable, "-m", "deploy.cli", "bench", "throughput", "--url", url]
    command += ["--tokenizer", str(model), "--out", str(out)]
    command += ["--html", str(out.with_suffix(".html"))] if report else []
    return subprocess.run([*command, *more], check=False).returncode


def disturb(url: str, model: Path, setup: str, out: Path) -> None:
    vocab = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
    load = Load(
        num_streams=32, stream_prompt=1024, stream_tokens=1024, num_arrivals=40,
        arrival_prompt=8192, arrival_tokens=1, every_s=0.25, vocab=vocab,
    )  # fmt: skip
    found = {setup: asyncio.run(measure(url, load))}
    _write(out, "interference", {"load": asdict(load), "results": found})
    typer.echo(json.dumps(found), err=True)


def write_stages(out: Path, setup: str, served: stack.Stack, since: float) -> None:
    """Of the requests that were received from ``since`` (Unix seconds) on, without those that ended
    more than an hour ago: their records are gone. Nothing is written without a handoff."""
    redis_url = stack.setting(served.pids()["coordinator"], "BATON_REDIS_URL")
    records = [r for r in read_records(redis_url) if (r.received_at or 0.0) >= since]
    stages = of_records(records)
    if stages["handoffs"]:
        _write(out, "handoff stages", {"setup": setup, **stages})


def _write(out: Path, kind: str, found: dict[str, Any]) -> None:
    where = environment.describe(sys.argv[1:], "bench.pools")
    out.write_text(json.dumps({"kind": kind, "environment": where, **found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
