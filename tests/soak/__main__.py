"""``python -m tests.soak``: random faults under load, for as long as asked.

    make soak MINUTES=30 SEED=1
    python -m tests.soak --minutes 3 --seed 1 -- --role colocated --workers 2
    python -m tests.soak --minutes 5 --margin 0.06 -- --role colocated --workers 2 --spread 2

Starts ``baton up`` on the CPU (two prefill and two decode workers, or what follows ``--``) with a
Redis of its own, and learns the right answers of some greedy and sampled requests while nothing
disturbs it. Then clients ask for them without pause, streamed and whole, while a fault drawn from
tests/soak/faults.py is injected at a time. After each one it waits until all workers are there
again, pauses the load, and checks that

- every token of every request was the right one, and none was lost, failed or refused (the kill of
  the coordinator breaks the connections of open requests);
- client, coordinator (/metrics) and Redis tell of one and the same end of each request;
- 5 s after the last response nothing is queued, running or held: no page, no state slot;

and at the end that the stack stops with exit code 0 and leaves no process, no file and no
shared-memory segment. The first violation ends the run. Exit code: 0; 1 for a violation, which is
printed with the seed; 2 when nothing could be run.
"""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench.environment import describe
from bench.result_file import document, write
from bench.stack import ROOT
from tests.soak.cases import MIN_MARGIN_NATS, NoCases
from tests.soak.run import HEADER, Plan, Soak, results
from tests.soak.site import Site

TRACEBACK_LINES = 40
LOG_LINES = 40


def main(
    arguments: Annotated[list[str] | None, typer.Argument(help="Of baton up, behind --.")] = None,
    minutes: Annotated[float, typer.Option(help="How long faults are injected.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the faults, their order and the requests.")] = 0,
    every: Annotated[float, typer.Option(help="Seconds from one fault to the next.")] = 20.0,
    clients: Annotated[int, typer.Option(help="Requests open at a time.")] = 8,
    cases: Annotated[int, typer.Option(help="Requests with known answers.")] = 24,
    fault: Annotated[list[str] | None, typer.Option(help="Only this one; several times.")] = None,
    margin: Annotated[
        float, typer.Option(help="Nats by which a greedy token must be clear; 0.06 on GPUs.")
    ] = MIN_MARGIN_NATS,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("soak.json"),
) -> None:
    """Random faults under load; see the head of tests/soak/__main__.py."""
    try:
        plan = Plan(60.0 * minutes, every, seed, clients, cases, tuple(fault or ()), margin)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    environment = describe(sys.argv[1:], "tests.soak")
    up = arguments or ["--prefill", "2", "--decode", "2"]
    folder = Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    stopped = None
    try:
        site = Site(folder, model, ["--device", "cpu", *up])
    except Exception as error:
        typer.echo(f"error: the stack did not start: {error}", err=True)
        raise typer.Exit(2) from None
    soak = Soak(site, plan)
    typer.echo(HEADER)
    try:
        asyncio.run(soak.run())
    except NoCases as error:
        stopped = str(error)
    except KeyboardInterrupt:
        stopped = "SIGINT"
    except Exception as error:
        soak.violations.append(f"the run broke off: {error!r}")
    soak.violations += site.stop()
    log = (folder / "baton.log").read_text()
    if "Traceback" in log:
        told = log[log.index("Traceback") :].splitlines()[:TRACEBACK_LINES]
        soak.violations.append("a traceback in the log:\n" + "\n".join(told))
    settings = {**plan.__dict__, "baton_up": up}
    found = document(
        "soak", environment=environment, server={}, settings=settings,
        results=results(soak), stopped=stopped, problems=soak.violations,
    )  # fmt: skip
    write(out, found)
    told = found["results"]
    typer.echo(
        f"{told['faults']} faults, {told['requests']} requests {told['outcomes']}, "
        f"{told['tokens_compared']} tokens compared; seed {seed}"
    )
    if not found["ok"]:
        typer.echo("the last lines of the stack:\n" + "\n".join(log.splitlines()[-LOG_LINES:]))
        for violation in soak.violations[:20]:
            typer.echo(f"violated: {violation}")
        typer.echo(f"seed {seed}; all that the stack printed: {folder / 'baton.log'}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(0 if found["ok"] else 2 if stopped and not soak.violations else 1)


if __name__ == "__main__":
    typer.run(main)
