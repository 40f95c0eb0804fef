"""``baton bench load``: arrivals that do not wait for the server, and the goodput it keeps."""

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands import options as o
from bench.commands.conduct import Conduct, Finding, Session, nobodys_gpus

PromptAs = Literal["text", "ids"]


def load(
    url: o.Url = "http://127.0.0.1:8000",
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    tokenizer: o.TokenizerFolder = None,
    vocab_size: o.VocabSize = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second: Poisson, or what a trace is paced to."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake or Bailian JSONL, Azure CSV.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Find the goodput, beginning at --rate.")
    ] = False,
    duration_s: Annotated[float | None, typer.Option(help="Seconds of arrivals a run.")] = 60.0,
    requests: Annotated[int | None, typer.Option(help="At most so many requests a run.")] = None,
    input_len: Annotated[str, typer.Option(help="Poisson: N or LOW-HIGH tokens in.")] = "1024",
    output_len: Annotated[str, typer.Option(help="Poisson: N or LOW-HIGH tokens out.")] = "128",
    max_input_len: Annotated[int | None, typer.Option(help="Cut longer prompts.")] = None,
    max_output_len: Annotated[int | None, typer.Option(help="Cut longer answers.")] = None,
    slo_ttft_ms: Annotated[float, typer.Option(help="Target for TTFT.")] = 2000.0,
    slo_tpot_ms: Annotated[float, typer.Option(help="Target for TPOT.")] = 50.0,
    tolerance: Annotated[float, typer.Option(help="Sweep: relative gap to stop at.")] = 0.1,
    max_trials: Annotated[int, typer.Option(help="Sweep: rates tried at most, a share.")] = 12,
    least_requests: Annotated[int, typer.Option(help="Sweep: requests a rate at least.")] = 100,
    warm_ups: Annotated[int, typer.Option(help="Requests before, not counted.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Fresh if not given.")] = None,
    prompt_as: Annotated[
        PromptAs, typer.Option(help="ids: exact where blocks are shared.")
    ] = "text",
    temperature: Annotated[float, typer.Option(help="Of every request.")] = 1.0,
    ignore_eos: Annotated[bool, typer.Option(help="Go on to the planned length.")] = True,
    token_ids: Annotated[bool, typer.Option(help="Ask for token ids (an extension).")] = True,
    exact: o.Exact = None,
    extra_body: o.ExtraBody = "{}",
    connect_s: o.ConnectS = 10.0,
    first_byte_s: o.FirstByteS = 120.0,
    stall_s: o.StallS = 60.0,
    request_s: o.RequestS = 900.0,
    give_up_after: o.GiveUpAfter = 1000,
    time_limit_s: o.TimeLimitS = 4 * 3600.0,
    out: o.Out = Path("load.json"),
    html: o.Html = None,
) -> None:
    """Poisson or trace arrivals in an open loop, judged by targets for TTFT and TPOT.

    Exit status: 0, 1 when requests failed or no rate met the targets, 2 when nothing could be
    measured, 130 interrupted.
    """
    from bench.figures.goodput import Slo
    from bench.load_result import Load
    from bench.load_settings import LoadSettings
    from bench.loader import Loader
    from bench.server_info import find_tokens
    from bench.sweep import sweep as run_sweep
    from bench.workload.plan import Lengths
    from bench.workload.traces import read_trace
    from telemetry.nvml import local_gpus

    try:
        settings = LoadSettings(
            seed=secrets.randbelow(2**32) if seed is None else seed,
            slo=Slo(slo_ttft_ms / 1000, slo_tpot_ms / 1000),
            trace=None if trace is None else trace.name,
            rate=rate,
            requests=requests,
            duration_s=duration_s,
            inputs=Lengths.parse("input_len", input_len),
            outputs=Lengths.parse("output_len", output_len),
            max_input_len=max_input_len,
            max_output_len=max_output_len,
            warm_ups=warm_ups,
            prompt_as=prompt_as,
            temperature=temperature,
            ignore_eos=ignore_eos,
            return_token_ids=token_ids,
            exact=exact,
            extra_body=o.json_object("extra_body", extra_body),
            sweep=sweep,
            tolerance=tolerance,
            max_trials=max_trials,
            least_requests=least_requests,
        )
        planned = [] if trace is None else read_trace(trace)
        where = o.resolve_endpoint(url, api_key, insecure)
        deadlines, patience = o.resolve_limits(
            connect_s, first_byte_s, stall_s, request_s, give_up_after, time_limit_s
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def work(session: Session) -> Finding:
        tokens = await find_tokens(session.aside, session.server, tokenizer, vocab_size)
        session.progress.say(f"seed {settings.seed}, {tokens.source}")
        loader = Loader(
            session.client, session.server, tokens, settings, planned, session.control,
            session.progress,
        )  # fmt: skip
        await loader.warm_up()
        if settings.sweep:
            return await run_sweep(settings, tokens.source, loader.run, session.control)
        found = Load(settings, tokens.source)
        if session.control.stopped is None:
            found.runs.append(await loader.run(settings.rate))
        return found

    kind = "sweep" if sweep else "load"
    Conduct(kind, where, model, deadlines, patience, settings.json(), out, html,
        gpus=local_gpus if where.is_local else nobodys_gpus,
    )(work)  # fmt: skip
