"""``baton bench gpu``: five minutes of full load, tokens a second as one number, and a verdict."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands import options as o
from bench.commands.conduct import CANNOT_MEASURE, Conduct, Session

LoadFormat = Literal["auto", "dummy"]
_BUNDLED = Path(__file__).resolve().parents[2] / "models" / "tiny"


def gpu(
    url: Annotated[
        str | None,
        typer.Option(envvar="BATON_URL", help="A running server; one is started if not given."),
    ] = None,
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    checkpoint: Annotated[
        Path, typer.Option(help="What the started server serves; the bundled tiny model.")
    ] = _BUNDLED,
    load_format: Annotated[
        LoadFormat, typer.Option(help="Of the started server; dummy: random weights.")
    ] = "dummy",
    up_args: Annotated[
        str, typer.Option(help='More for the started server, as "--prefill 1 --decode 3".')
    ] = "",
    start_s: Annotated[float, typer.Option(help="Seconds the started server may take.")] = 600.0,
    hold_s: Annotated[float, typer.Option(help="Seconds of full load.")] = 300.0,
    start: Annotated[int, typer.Option(help="Requests at once to begin with.")] = 4,
    most: Annotated[int, typer.Option(help="Requests at once at most.")] = 2_048,
    input_words: Annotated[int, typer.Option(help="Words in; about as many tokens.")] = 128,
    output_len: Annotated[int, typer.Option(help="Tokens out.")] = 256,
    period_s: Annotated[float, typer.Option(help="Seconds between two readings.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    request_s: o.RequestS = 300.0,
    time_limit_s: o.TimeLimitS = 3_600.0,
    out: o.Out = Path("gpu.json"),
    html: o.Html = None,
) -> None:
    """Keep every GPU full and watch it: speed, energy, heat, clocks, memory errors, Xids.

    The GPUs are those of this machine, so run it where the server runs. Exit status: 0 healthy (or
    no GPU), 1 a GPU is degraded or failing or requests failed, 2 nothing could be measured.
    """
    import shlex
    from dataclasses import asdict

    from bench.client.endpoint import Deadlines
    from bench.gpu.health import Limits
    from bench.gpu.plan import GpuPlan
    from bench.gpu.report import GpuReport, Observed
    from bench.gpu.run import run
    from bench.gpu.sampler import Sampler
    from bench.run_control import Patience
    from bench.stack import StackFailed, running
    from telemetry.nvml import local_gpus

    try:
        plan = GpuPlan(
            hold_s=hold_s,
            start=start,
            most=most,
            input_words=input_words,
            output_len=output_len,
            period_s=period_s,
            request_limit_s=request_s,
            seed=seed,
        )
        patience = Patience(time_limit_s=time_limit_s)
        deadlines = Deadlines(first_byte_s=request_s, stall_s=request_s, total_s=request_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    limits = Limits()

    async def work(session: Session) -> GpuReport:
        sampler = Sampler(local_gpus(), period_s=plan.period_s)
        for note in sampler.notes:
            session.progress.say(note)
        held = await run(
            session.client, session.server.model, plan, sampler, session.progress.say,
            session.control.stopped_within,
        )  # fmt: skip
        seen = Observed(sampler.infos, sampler.readings, sampler.xids, sampler.notes)
        return GpuReport(held, seen, limits)

    with ExitStack() as stack:
        try:
            if url is None:
                arguments = ["--load-format", load_format, *shlex.split(up_args)]
                started = running(checkpoint, *arguments, device="auto", start_s=start_s)
                url = stack.enter_context(started).url
            where = o.resolve_endpoint(url, api_key, insecure)
        except StackFailed as error:
            typer.echo(f"cannot measure: {error}", err=True)
            raise typer.Exit(CANNOT_MEASURE) from None
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        Conduct("gpu", where, model, deadlines, patience, asdict(plan), out, html)(work)
