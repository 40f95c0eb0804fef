"""``python -m bench.pools``: the throughput protocol over set-ups of pools, one after the other.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.pools --setup both:4 --setup split:1+3 --setup split:2+2 \\
        --model /tmp/full --load-format dummy --device cuda --prefix h200-

Each set-up is started, measured by ``baton bench throughput`` over HTTP, asked for the stages of
its handoffs, and stopped. Arguments behind ``--`` go to ``baton bench throughput``. For each there
is a result, a report and, where it hands off, its stages in the folder of results. Exit code: 0;
the first bad one of ``baton bench throughput``'s; 2 when a set-up did not start.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench import environment, stack
from bench.handoff_stages import TIMEOUT_S, of_metrics
from bench.interference import setup_arguments

ROOT = Path(__file__).resolve().parent.parent


def main(
    setup: Annotated[list[str], typer.Option(help="split:P+D or both:N; several times.")],
    more: Annotated[
        list[str] | None, typer.Argument(help="For baton bench throughput, behind --.")
    ] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results",
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
) -> None:
    """Measure each set-up, and what its handoffs took."""
    try:
        arguments = {each: setup_arguments(each) for each in setup}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    statuses = []
    for each, how in arguments.items():
        out = out_dir / f"{prefix}{each.replace(':', '-').replace('+', '-')}.json"
        typer.echo(f"{each}: starting", err=True)
        try:
            with stack.running(model, *how, "--load-format", load_format, device=device) as served:
                statuses.append(throughput(served.url, model, out, more or []))
                stages = of_metrics(httpx.get(f"{served.url}/metrics", timeout=TIMEOUT_S).text)
        except (stack.StackFailed, OSError, httpx.HTTPError) as error:
            typer.echo(f"error: {each}: {error}", err=True)
            raise typer.Exit(2) from None
        if stages["handoffs"]:
            write_stages(out.with_name(f"{out.stem}-handoff.json"), each, stages)
    raise typer.Exit(next((status for status in statuses if status), 0))


def throughput(url: str, model: Path, out: Path, more: list[str]) -> int:
    """The exit status of ``baton bench throughput``."""
    command = [sys.executable, "-m", "deploy.cli", "bench", "throughput", "--url", url]
    command += [
        "--tokenizer",
        str(model),
        "--out",
        str(out),
        "--html",
        str(out.with_suffix(".html")),
    ]
    return subprocess.run([*command, *more], check=False).returncode


def write_stages(out: Path, setup: str, stages: dict[str, object]) -> None:
    document = {
        "kind": "handoff stages",
        "environment": environment.describe(sys.argv[1:], "bench.pools"),
        "setup": setup,
        **stages,
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
