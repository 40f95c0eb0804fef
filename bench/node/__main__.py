"""``python -m bench.node``: a whole node measured by one command, part by part.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.node --setups split:2+6,split:1+7,colocated:8 --model /tmp/full \\
        --load-format dummy --device cuda --out-dir /tmp/node --prefix h200x8-

1. ``baton doctor``, with the self-test of every pair of GPUs.
2. For each set-up a stack: throughput at 1 to 64 at once (*levels*); the stages of handoffs, short
   ones alone and long ones (*handoff*); the pace of running streams while long prompts arrive
   (*interference*); everything at once (*crowd*).
3. Handoffs under load with verified digests, while workers are killed (*soak*).
4. Levels again with spread steps, and with drafts.

Each part has a time limit (plan.py) and a result file, PREFIX + stack + part in ``--out-dir``. A
part whose file says that it went well is not measured again, so the same command continues a run
that ended early. A file that is not a result of its part is not overwritten.

Exit code: 0 all parts have been measured and went well; 1 not; 2 wrong arguments.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from subprocess import SubprocessError
from typing import Annotated, TypeVar

import httpx
import redis
import typer

from bench import result_file, stack
from bench.commands import CommandFailed
from bench.environment import ROOT
from bench.harness.cannot_measure import CannotMeasure
from bench.node.measurements import WITH_STACK, WITHOUT_STACK
from bench.node.plan import KINDS, MODES, Part, Served, wanted
from bench.node.settings import Settings
from bench.node.sizes import SIZES
from bench.node.token_gaps import NotMeasured
from bench.result_file import ResultFileBad
from bench.setups import Setup

N = TypeVar("N", bound=str)
FAILURES = (
    CommandFailed, stack.StackFailed, NotMeasured, CannotMeasure, ResultFileBad,
    redis.RedisError, httpx.HTTPError, SubprocessError, OSError, TimeoutError, ValueError, KeyError,
)  # fmt: skip
"""What a part may end with. A KeyError: a service is not there."""


def main(
    setups: Annotated[str, typer.Option(help="split:P+D or colocated:N, commas between.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    size: Annotated[str, typer.Option(help="full, or tiny: for the bundled model.")] = "full",
    modes: Annotated[str, typer.Option(help="Of plain, spread, drafts.")] = ",".join(MODES),
    parts: Annotated[str, typer.Option(help="Only these.")] = ",".join(KINDS),
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = Path("node-results"),
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
    plan_only: Annotated[bool, typer.Option("--plan", help="Show the plan, run nothing.")] = False,
) -> None:
    """Measure a node's set-ups, part by part."""
    try:
        pools = [Setup.parse(each) for each in setups.split(",")]
        plan = wanted(pools, _some(modes, MODES, "--modes"), _some(parts, KINDS, "--parts"))
        if device not in ("cpu", "cuda"):
            raise ValueError(f"--device: {device!r} is neither cpu nor cuda")
        sizes = SIZES[_some(size, tuple(SIZES), "--size")[0]]
        settings = Settings(
            model.absolute(), device, load_format, sizes, out_dir.absolute(), prefix,
            tuple(up or ()),
        )  # fmt: skip
        to_do = [part for part in plan if not is_done(part, settings.file(part))]
    except (ValueError, ResultFileBad) as error:
        raise typer.BadParameter(str(error)) from None
    for part in plan:
        state = "to do" if part in to_do else "done before"
        typer.echo(f"{part.name:>34}  at most {part.limit_s:4.0f} s  {state}", err=True)
    if not plan_only:
        raise typer.Exit(0 if run(settings, to_do) else 1)


def is_done(part: Part, file: Path) -> bool:
    """True if an earlier run has measured the part, and it went well. Raises ResultFileBad if
    ``file`` is something else, which would be overwritten."""
    return file.exists() and bool(result_file.load(file, part.result_kind).get("ok"))


def run(settings: Settings, parts: Sequence[Part]) -> bool:
    """Measure the parts, with one stack for those that share it; True if all went well. The rest
    goes on when a part fails or a stack does not start."""
    all_well = True
    for served, sharing in groupby(parts, key=lambda part: part.stack):
        with ExitStack() as opened:
            running: stack.Stack | Exception | None = None
            if served is not None:
                running = _start(settings, served, opened)
            for part in sharing:
                problems = _measure(settings, part, running)
                state = "; ".join(problems) or "done"
                typer.echo(f"{part.name}: {state}", err=True)
                all_well = all_well and not problems
    return all_well


def _start(
    settings: Settings, served: Served, opened: ExitStack
) -> stack.Stack | stack.StackFailed:
    """A stack that is stopped when ``opened`` is left, or why it did not start."""
    try:
        running = opened.enter_context(
            stack.started(*settings.up(served), settings=served.settings())
        )
    except stack.StackFailed as error:
        return error
    opened.callback(running.stop)
    return running


def _measure(settings: Settings, part: Part, running: stack.Stack | Exception | None) -> list[str]:
    """Problems of one part: empty if it was measured and went well."""
    try:
        if running is None:
            return WITHOUT_STACK[part.kind](settings, part)
        if isinstance(running, Exception):
            raise running
        return WITH_STACK[part.kind](settings, part, running)
    except FAILURES as error:
        return [str(error) or repr(error)]


def _some(given: str, known: tuple[N, ...], option: str) -> list[N]:
    """Split ``given`` into names. Raises ValueError unless all are ``known``."""
    named = given.split(",")
    if unknown := sorted(set(named) - set(known)):
        raise ValueError(f"{option}: {unknown[0]!r} is none of {', '.join(known)}")
    return [each for each in known if each in named]


if __name__ == "__main__":
    typer.run(main)
