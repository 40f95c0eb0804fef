"""``python -m bench.node``: a whole node measured by one command, in calls of limited time.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.node --setups split:2+6,split:1+7,colocated:8 --model /tmp/full \\
        --load-format dummy --device cuda --prefix h200x8- --budget-s 1650 --call-s 560

1. ``baton doctor``, with the self-test of every pair of GPUs.
2. For each set-up a stack: throughput at 1 to 64 at once (*levels*); the stages of handoffs, short
   ones alone and long ones (*handoff*); the pace of running streams while long prompts arrive
   (*interference*); everything at once (*crowd*).
3. Handoffs under load with verified digests, while workers are killed (*soak*).
4. Levels again with spread steps, and with drafts.

Each part has a deadline and a result file, PREFIX + stack + part in ``--out-dir``, and a part whose
file says that it went well is not measured again: the same command goes on where it ended. A file
that is no result of its part is not overwritten. ``--budget-s`` bounds all calls together: beyond
it the least important parts are left out, and stay so unless it is raised. ``--call-s`` bounds this
call. ``--archive`` packs all results so far into one file after each part. At the end, also with
``--call-s 0``, a table of all that is there, with measured / predicted (bench/predict), goes to the
terminal and to PREFIX + summary.json.

Exit code: 0 all parts of the plan are there and went well; 1 not; 2 wrong arguments; 3 all parts
were done before, so nothing was measured or written (``--call-s 0`` asks for no more, and ends with
0).
"""

import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bench import environment, result_file
from bench.environment import ROOT
from bench.harness.options import int_list
from bench.node import estimates
from bench.node.earlier import Earlier, require_own
from bench.node.plan import KINDS, MODES, total_s, wanted
from bench.node.run import Conductor, Outcome, pack
from bench.node.settings import UNLIMITED_S, Settings
from bench.node.sizes import SIZES, Sizes
from bench.node.summary import lines, node_of, tables
from bench.predict.tables import STEPS, Table
from bench.setups import Setup
from deploy.gpus import count_gpus

N = TypeVar("N", bound=str)


def main(
    setups: Annotated[str, typer.Option(help="split:P+D or colocated:N, commas between.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    size: Annotated[str, typer.Option(help="full, or tiny: for the bundled model.")] = "full",
    step: Annotated[
        list[Path] | None,
        typer.Option(help="Steps to predict from, as of bench.predict; an H200's with cuda."),
    ] = None,
    levels: Annotated[str, typer.Option(help="Instead of the size's: requests at once.")] = "",
    rounds: Annotated[int, typer.Option(help="Times that a level is filled; 0: the size's.")] = 0,
    modes: Annotated[str, typer.Option(help="Of plain, spread, drafts.")] = ",".join(MODES),
    parts: Annotated[str, typer.Option(help="Only these.")] = ",".join(KINDS),
    budget_s: Annotated[float, typer.Option(help="Seconds for all calls.")] = UNLIMITED_S,
    call_s: Annotated[float, typer.Option(help="Seconds for this call.")] = UNLIMITED_S,
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = Path("node-results"),
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
    archive: Annotated[Path | None, typer.Option(help="Also all of them, as .tar.gz.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Show the plan, run nothing.")] = False,
) -> None:
    """Measure a node's set-ups, part by part."""
    try:
        pools = [Setup.parse(each) for each in setups.split(",")]
        sizes = _sizes(size, levels, rounds)
        every = wanted(pools, _some(modes, MODES, "--modes"), _some(parts, KINDS, "--parts"))
        if device not in ("cpu", "cuda"):
            raise ValueError(f"--device: {device!r} is neither cpu nor cuda")
        if device == "cuda" and not plan_only:
            _require_gpus(pools, up or [])
        table = Table.read(step or STEPS) if step or device == "cuda" else None
        plan = [estimates.part(k, each, sizes, device, node_of(table, each)) for k, each in every]
        settings = Settings(
            model.absolute(), device, load_format, sizes, out_dir.absolute(), prefix, table,
            tuple(sys.argv[1:]), budget_s, tuple(up or ()),
        )  # fmt: skip
        files = [settings.file(part) for part in plan]
        results = [*files, settings.summary_file]
        require_own(zip(plan, files, strict=True))
        earlier = Earlier.read(settings.summary_file)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    starts = estimates.starts(device)
    conductor = Conductor(
        settings, starts, 0.0 if plan_only else call_s,
        after_part=partial(pack, archive, results) if archive else lambda: None,
    )  # fmt: skip
    to_do = [part for part in plan if not conductor.is_done(part)]
    taken = earlier.choose(to_do, budget_s, starts)
    typer.echo(
        f"{len(plan)} parts, {len(to_do)} to do in about {total_s(to_do, starts):.0f} s, of these "
        f"{len(taken)} in {total_s(taken, starts):.0f} s; earlier calls took "
        f"{earlier.spent_s:.0f} s",
        err=True,
    )
    if plan_only:
        for part in plan:
            state = "chosen" if part in taken else "left out" if part in to_do else "done before"
            typer.echo(f"{part.name:>34}  {part.seconds:6.0f} s  {state}")
        return
    if not to_do and call_s > 0:
        typer.echo(
            f"nothing was measured: all {len(plan)} parts were done before, and their results are "
            f"in {out_dir}. To measure a part again remove its file, or give another --out-dir or "
            "--prefix; --call-s 0 writes the summary",
            err=True,
        )
        raise typer.Exit(3)
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = conductor.run(plan, taken)
    whole = _told(settings, earlier, outcomes, conductor)
    if archive:
        pack(archive, results)
    raise typer.Exit(0 if whole else 1)


def _told(
    settings: Settings, earlier: Earlier, outcomes: list[Outcome], conductor: Conductor
) -> bool:
    """Write and show the whole; whether all parts are there and went well."""
    found = tables(settings, [outcome.part for outcome in outcomes])
    problems = [
        f"{outcome.part.name}: {'; '.join(outcome.problems) or outcome.state}"
        for outcome in outcomes
        if not outcome.state.startswith("done")
    ]
    parts = dict(earlier.parts)
    for outcome in outcomes:
        if outcome.state != "done before" or outcome.part.name not in parts:
            parts[outcome.part.name] = outcome.json()
    document = result_file.document(
        "node",
        environment=environment.describe(settings.command, "bench.node"),
        server={"model": settings.model.name, "device": settings.device},
        settings={
            "predicted_from": settings.table.files if settings.table else None,
            "budget_s": settings.budget_s,
        },
        results={
            "stacks": found,
            "parts": [parts[outcome.part.name] for outcome in outcomes],
            "started_s": {**earlier.started_s, **conductor.started_s},
            "spent_s": earlier.spent_s + conductor.spent_s,
        },
        problems=problems,
    )
    result_file.write(settings.summary_file, document)
    for line in lines(found):
        typer.echo(line)
    for problem in problems:
        typer.echo(problem.splitlines()[0], err=True)
    return not problems


def _sizes(name: str, levels: str, rounds: int) -> Sizes:
    if name not in SIZES:
        raise ValueError(f"--size: {name!r} is none of {', '.join(SIZES)}")
    sizes = SIZES[name]
    if levels:
        at_once = int_list("--levels", levels)
        sizes = replace(sizes, levels=at_once, requests=max(sizes.requests, *at_once))
    return replace(sizes, rounds=rounds) if rounds else sizes


def _some(given: str, known: tuple[N, ...], option: str) -> list[N]:
    """Split ``given`` into names. Raises ValueError unless all are ``known``."""
    named = given.split(",")
    if unknown := sorted(set(named) - set(known)):
        raise ValueError(f"{option}: {unknown[0]!r} is none of {', '.join(known)}")
    return [each for each in known if each in named]


def _require_gpus(setups: list[Setup], up: list[str]) -> None:
    """As ``baton up`` has it, with --gpu-share workers on each."""
    number = count_gpus()
    share = next((int(number) for name, number in pairwise(up) if name == "--gpu-share"), 1)
    for setup in setups:
        if setup.num_workers > number * share:
            raise ValueError(f"--setups: {setup.name} needs {setup.num_workers} GPUs of {number}")


if __name__ == "__main__":
    typer.run(main)
